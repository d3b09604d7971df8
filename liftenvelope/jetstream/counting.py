"""Tells where a consumer of a stream begins and how many messages it has, as the stream's leader knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from liftenvelope.errors import MessageNotFoundError
from liftenvelope.jetstream._consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy
from liftenvelope.jetstream._consumer_requests import create_reader
from liftenvelope.jetstream.api import natural
from liftenvelope.jetstream.lagging import LeaderSearch

if TYPE_CHECKING:
    from liftenvelope.jetstream._stream import Stream
    from liftenvelope.jetstream.api import Api
    from liftenvelope.jetstream.infos import ClusterInfo, ConsumerInfo

__all__ = ["at_sequence", "count_from", "first_sequence", "is_stored", "on_leader"]

_T = TypeVar("_T")
#: Seconds after which the server deletes a consumer that could not be deleted.
_INACTIVE: Final = 5.0


def at_sequence(sequence: int) -> dict[str, Any]:
    """Return the part of a consumer's configuration that begins at a sequence, 1 or more."""
    return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": sequence}


async def count_from(stream: Stream, start: Mapping[str, Any], subjects: Sequence[str] = ()) -> int:
    """Return the number of messages from a place on, as the stream's leader counts them.

    Args:
        stream: The stream.
        start: Place of the first message to count: the part of a consumer's configuration that says it, as
            from :func:`at_sequence`.
        subjects: Only messages on these subjects; empty for all.

    Raises:
        TransportError: The server placed no consumer on the leader.
        LiftEnvelopeError: JetStream did not answer, or refused a request.
    """
    return (await _on_leader(stream, start, subjects)).num_pending


async def first_sequence(stream: Stream, start: Mapping[str, Any], subjects: Sequence[str] = ()) -> int:
    """Return the sequence at which a consumer on the stream's leader begins.

    A consumer on a replica that lags takes an older message for the last one, or for the first after a time.

    Args:
        stream: The stream.
        start: The part of a consumer's configuration that says where to begin.
        subjects: Only messages on these subjects; empty for all.

    Returns:
        1 or more. The message with this sequence need not match, and need not exist yet.

    Raises:
        TransportError: The server placed no consumer on the leader.
        LiftEnvelopeError: JetStream did not answer, or refused a request.
    """
    return (await _on_leader(stream, start, subjects)).delivered.stream_seq + 1


async def on_leader(
    stream: str, ask_leader: Callable[[], Awaitable[str]], probe: Callable[[], Awaitable[tuple[_T, str]]]
) -> _T:
    """Make and delete consumers until one was on the stream's leader; return what that one told.

    Args:
        stream: Name of the stream.
        ask_leader: Asks for the name of the stream's leader.
        probe: Makes and deletes a consumer; returns what it told, and the name of its server.

    Raises:
        TransportError: The server placed no consumer on the leader.
        LiftEnvelopeError: Any error of the two functions.
    """
    search = LeaderSearch(stream)
    while True:
        if search.needs_leader:
            search.leader = await ask_leader()
        found, server = await probe()
        if search.accepts(server):
            return found


async def _on_leader(stream: Stream, start: Mapping[str, Any], subjects: Sequence[str]) -> ConsumerInfo:
    """Return the info of a new consumer on the leader, which is deleted at once."""

    async def ask_leader() -> str:
        return _server_of((await stream.info()).cluster)

    async def probe() -> tuple[ConsumerInfo, str]:
        config = ConsumerConfig(
            name=f"count-{uuid4().hex}",
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_INACTIVE,
            filter_subjects=tuple(subjects),
            **start,
        )
        info = await create_reader(stream._api, stream.name, config)
        await stream.delete_consumer(info.name)
        return info, _server_of(info.cluster)

    return await on_leader(stream.name, ask_leader, probe)


async def is_stored(api: Api, stream: str, first: int, last: int) -> bool:
    """Return whether a stream still has a message from sequence ``first`` to ``last``.

    Raises:
        JetStreamError, CallTimeoutError, TransportError: JetStream did not answer, or refused the request.
        ServerProtocolError: The answer makes no sense.
    """
    if first > last:
        return False
    request = {"seq": first, "next_by_subj": ">"}
    try:
        return await api.request_as(_sequence_of, f"STREAM.MSG.GET.{stream}", request) <= last
    except MessageNotFoundError:
        return False


def _sequence_of(answer: dict[str, Any]) -> int:
    return natural(answer["message"]["seq"])


def _server_of(cluster: ClusterInfo | None) -> str:
    return "" if cluster is None else cluster.leader
