"""Counts the messages of a stream from a sequence on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from liftenvelope.errors import TransportError
from liftenvelope.jetstream._consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy

if TYPE_CHECKING:
    from liftenvelope.jetstream._stream import Stream
    from liftenvelope.jetstream.infos import ClusterInfo

__all__ = ["count_from"]

#: Seconds after which the server deletes a consumer that could not be deleted.
_INACTIVE: Final = 5.0
#: Consumers to create before giving up on getting one on the leader. The server chooses one of the copies at
#: random: of five copies, 20 consumers miss the leader once in 90 times.
_MOST_PLACES: Final = 20


async def count_from(stream: Stream, sequence: int, subjects: Sequence[str] = ()) -> int:
    """Return the number of messages from a sequence on, as the stream's leader counts them.

    A consumer tells the number. It may be on a replica that lags, and count too few. So consumers are made
    until one is on the leader.

    Args:
        stream: The stream.
        sequence: First sequence to count, 1 or more.
        subjects: Only messages on these subjects; empty for all.

    Raises:
        TransportError: The server placed no consumer on the leader.
        LiftEnvelopeError: JetStream did not answer, or refused a request.
    """
    leader = _server_of((await stream.info()).cluster)
    for _ in range(_MOST_PLACES):
        config = ConsumerConfig(
            name=f"count-{uuid4().hex}",
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_INACTIVE,
            filter_subjects=tuple(subjects),
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=sequence,
        )
        consumer = await stream.create_consumer(config)
        info = consumer.cached_info
        await stream.delete_consumer(consumer.name)
        if _server_of(info.cluster) in ("", leader):
            return info.num_pending
    text = f"{stream.name}: no consumer of {_MOST_PLACES} came to the leader {leader!r}"
    raise TransportError(text)


def _server_of(cluster: ClusterInfo | None) -> str:
    return "" if cluster is None else cluster.leader or ""
