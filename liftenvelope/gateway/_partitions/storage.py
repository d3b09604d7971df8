"""Stores partitions as JetStream streams: creates, feeds, inspects and removes them.

JetStream records a subject in one stream only. Liftbridge records a subject in any number of streams. So the
first stream on a subject records it, and later streams copy from that stream (JetStream calls this sourcing),
beginning with the next message after their creation. When the first stream stops recording because it is
paused, made readonly or deleted, one of the copies takes over the subject.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftenvelope.errors import (
    CallTimeoutError,
    MessageNotFoundError,
    NoJetStreamError,
    StreamNameInUseError,
    StreamNotFoundError,
    SubjectsOverlapError,
)
from liftenvelope.gateway._cluster.records import StreamPhase
from liftenvelope.gateway._partitions.recordings import (
    Recording,
    covers,
    is_recorded,
    nothing,
    recorded_subject,
)
from liftenvelope.gateway._partitions.replicas import Replicas
from liftenvelope.gateway._partitions.sources import copied_sequence, copied_subject, distinct_source
from liftenvelope.jetstream.api import parse_ns
from liftenvelope.jetstream.stream_config import StreamConfig, StreamSource, SubjectTransform
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.jetstream import Stream
    from liftenvelope.jetstream.context import JetStream

__all__ = ["RECORD_ID", "PartitionState", "Storage"]

_log: Final = logging.getLogger("liftenvelope.gateway")

#: Shortest message retention that JetStream accepts, in seconds.
_SHORTEST_AGE: Final = 0.1
#: Interval in seconds of the checks whether a copy has caught up with its source.
_LOOK: Final = 0.02
#: Header that nats-server adds to copied messages; see :func:`copied_sequence`.
_COPIED_FROM: Final = "Nats-Stream-Source"
#: Entry of the metadata of a partition with the id of the record that it was made for.
RECORD_ID: Final = "liftenvelope"
#: Most partitions whose states are requested one by one. For more, the list of all streams is read, with 256
#: streams per request.
_ONE_BY_ONE: Final = 64
#: Seconds for which that list is cached, and the timeout of one page in seconds.
_LIST_AGE: Final = 1.0
_PAGE_TIMEOUT: Final = 2.0
_PAGES_AT_ONCE: Final = 4

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Offsets, size and times of a partition's messages.

    Times are in nanoseconds since 1970.

    Attributes:
        oldest: Offset of the oldest message; in an empty partition the offset of the next message.
        newest: Offset of the newest message ever stored, even if it was removed; -1 for none.
        messages: Number of messages.
        bytes: Total size of the messages in bytes.
        first_ns: Time of the oldest message; 0 for an empty partition.
        latest_ns: Time of the newest message ever stored; 0 for none.
    """

    oldest: int
    newest: int
    messages: int
    bytes: int
    first_ns: int
    latest_ns: int

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> PartitionState:
        """Parse the ``state`` object of a JetStream stream info."""
        last, messages = int(state["last_seq"]), int(state["messages"])
        first = int(state["first_seq"]) if messages else last + 1
        first_ns = parse_ns(state["first_ts"]) if messages else 0
        latest_ns = parse_ns(state["last_ts"]) if last else 0
        return cls(first - 1, last - 1, messages, int(state["bytes"]), first_ns, latest_ns)

    @property
    def is_empty(self) -> bool:
        """True if the partition has no messages."""
        return not self.messages


class Storage:
    """Creates, feeds, inspects and removes partitions in JetStream.

    JetStream has no conditional update: what a gateway has read of a stream may be outdated when it writes.
    While its lease is valid, no other gateway takes it for dead and changes the same partition. So it checks
    its lease between the two.

    Args:
        js: JetStream.
        has_lease: Returns whether the lease of the gateway is valid. Default: always true.

    Attributes:
        replicas: Counts the in-sync replicas of partitions.
    """

    def __init__(self, js: JetStream, has_lease: Callable[[], bool] = lambda: True) -> None:
        self._js = js
        self._has_lease = has_lease
        self.replicas = Replicas(js)
        # States of all JetStream streams by name, and the time when they were read.
        self._listed: dict[str, PartitionState] = {}
        self._listed_at = -_LIST_AGE
        self._listing = asyncio.Lock()

    async def state(self, stream: str) -> PartitionState:
        """Return the state of a partition, given the name of its JetStream stream.

        Raises:
            StreamNotFoundError: The stream does not exist.
        """
        answer = await self._js.api.request(f"STREAM.INFO.{stream}")
        return PartitionState.from_json(answer["state"])

    async def states(self, streams: Iterable[str]) -> dict[str, PartitionState]:
        """Return the states of partitions by the names of their JetStream streams; omit deleted ones.

        The result may hold further partitions and is shared: do not change it. For more than 64 partitions,
        the states may be a second old. While JetStream does not answer, they are older or missing, without an
        error: clients need the rest of the metadata to find another gateway.

        Raises:
            LiftEnvelopeError: JetStream does not answer or fails. Raised for up to 64 partitions; for more,
                not when JetStream does not answer.
        """
        names = list(islice(streams, _ONE_BY_ONE + 1))
        if len(names) > _ONE_BY_ONE:
            del streams, names  # a call that waits for the list keeps no names of its own
            return await self._all_states()
        found = await asyncio.gather(*(self.state(stream) for stream in names), return_exceptions=True)
        states = {}
        for stream, state in zip(names, found, strict=True):
            if isinstance(state, PartitionState):
                states[stream] = state
            elif not isinstance(state, StreamNotFoundError):
                raise state
        return states

    async def _all_states(self) -> dict[str, PartitionState]:
        """Return the states of all streams, read at most once a second for all callers."""
        async with self._listing:
            now = asyncio.get_running_loop().time()
            if now - self._listed_at >= _LIST_AGE:
                try:
                    self._listed = await self.listed(lambda info: PartitionState.from_json(info["state"]))
                except (CallTimeoutError, NoJetStreamError) as exc:
                    _log.warning(
                        "metadata is out of date because JetStream did not list its streams: %s", exc
                    )
                self._listed_at = asyncio.get_running_loop().time()
        return self._listed

    async def recordings(self) -> dict[str, Recording]:
        """Return what all JetStream streams record, by their names. Streams may be missing in a cluster.

        Raises:
            LiftEnvelopeError: JetStream does not list its streams.
        """
        return await self.listed(lambda info: Recording.from_json(info["config"]), self._js.api.timeout)

    async def listed(
        self, read: Callable[[dict[str, Any]], _Read], timeout: float = _PAGE_TIMEOUT
    ) -> dict[str, _Read]:
        """Return what is read of the infos of all streams, by name. Streams may be missing in a cluster.

        Four pages are requested at a time after the first.

        Args:
            read: Reads an info.
            timeout: Seconds to wait for each page.

        Raises:
            LiftEnvelopeError: JetStream does not list its streams.
        """
        found: dict[str, _Read] = {}

        async def page(offset: int) -> tuple[int, int]:
            """Read one page; return the total number of streams and the page size."""
            answer = await self._js.api.request("STREAM.LIST", {"offset": offset}, timeout=timeout)
            for info in answer.get("streams") or []:
                found[info["config"]["name"]] = read(info)
            return answer.get("total", 0), max(answer.get("limit", 0), 1)

        total, limit = await page(0)
        for start in range(limit, total, limit * _PAGES_AT_ONCE):
            offsets = range(start, min(start + limit * _PAGES_AT_ONCE, total), limit)
            await asyncio.gather(*map(page, offsets))
        return found

    async def create(self, record: StreamRecord, partition: int) -> str | None:
        """Create a partition.

        Returns:
            Name of the stream from which the partition copies; None if it records its subject itself.

        Raises:
            RpcError: FAILED_PRECONDITION: other streams record parts of the subject, so that it can't be
                copied from one stream.
            JetStreamError: JetStream refuses to create the stream.
        """
        config = self._config(record, partition)
        try:
            await self._js.create_stream(config)
        except StreamNameInUseError:
            # An adopted stream may have other replicas, or was edited by an administrator.
            if await self.id_of(config.name) != record.id:
                raise
        except SubjectsOverlapError:
            source = await self._source(config)
            await self._js.create_stream(replace(config, subjects=(), sources=(source,)))
            return source.name
        return None

    async def id_of(self, stream: str) -> str | None:
        """Return the id of the record that a JetStream stream was created for; empty if it names none.

        None stands for no such stream.
        """
        try:
            found = await self._js.stream(stream)
        except StreamNotFoundError:
            return None
        return (found.cached_info.config.metadata or {}).get(RECORD_ID, "")

    async def delete(self, record: StreamRecord, partition: int) -> None:
        """Remove a partition and its messages, if it exists and is this record's.

        After a creation that failed because the name is taken, the JetStream stream of that name is somebody
        else's, or one whose record was lost.

        Args:
            record: Record of the stream.
            partition: Number of the partition.
        """
        stream = record.stream_of(partition)
        while True:
            had_lease = self._has_lease()
            found = await self.id_of(stream)
            if found is None or (found != record.id and (found or record.state is StreamPhase.CREATING)):
                return
            if self._has_lease() or not had_lease:
                break
            # It expired meanwhile: the gateway may have stood still, while another one removed the stream and
            # made it anew.
        with suppress(StreamNotFoundError):
            await self._js.delete_stream(stream)

    async def attach(self, record: StreamRecord, partition: int) -> str | None:
        """Make a partition record its subject, or copy from the stream that records it.

        Returns:
            Name of the stream from which the partition copies; None if it records its subject itself.

        Raises:
            RpcError: FAILED_PRECONDITION: other streams record parts of the subject, so that it can't be
                copied from one stream. UNAVAILABLE: the partition has not yet copied all messages of its
                present source, which no longer records the subject. Or the gateway has lost its lease.
            StreamNotFoundError: The partition does not exist.
        """
        await self.wait_copied([(record, partition)], timeout=0)
        update = self._updating()
        current = await self._config_of(record, partition)
        config = replace(current, subjects=(recorded_subject(record, partition),), sources=())
        try:
            await update(config)
        except SubjectsOverlapError:
            source = distinct_source(await self._source(config), recorded_subject(record, partition))
            await update(replace(config, subjects=(), sources=(source,)))
            return source.name
        return None

    async def detach(self, record: StreamRecord, partition: int) -> None:
        """Make a partition record nothing.

        Raises:
            RpcError: UNAVAILABLE: the gateway has lost its lease.
            StreamNotFoundError: The partition does not exist.
        """
        update = self._updating()
        current, config = await self._detached(record, partition)
        if config != current:
            await update(config)

    async def is_detached(self, record: StreamRecord, partition: int) -> bool:
        """Return whether a partition records nothing.

        Raises:
            StreamNotFoundError: The partition does not exist.
        """
        current, config = await self._detached(record, partition)
        return config == current

    async def _detached(self, record: StreamRecord, partition: int) -> tuple[StreamConfig, StreamConfig]:
        """Return the configuration of a partition, and the one with which it records nothing."""
        current = await self._config_of(record, partition)
        return current, replace(current, subjects=(nothing(current.name),), sources=())

    async def _config_of(self, record: StreamRecord, partition: int) -> StreamConfig:
        """Return the configuration of a partition.

        Raises:
            StreamNotFoundError: The partition does not exist, or is that of a later stream of the same name.
        """
        name = record.stream_of(partition)
        config = (await self._js.stream(name)).cached_info.config
        if (config.metadata.get(RECORD_ID) or record.id) != record.id:
            raise StreamNotFoundError(404, f"{name} belongs to a later stream of the same name", 10059)
        return config

    def _updating(self) -> Callable[[StreamConfig], Awaitable[object]]:
        """Return a function that updates a stream, unless the gateway has lost its lease meanwhile.

        It may have stood still, while another gateway has changed the stream.

        Raises of the function:
            RpcError: UNAVAILABLE: the gateway has lost its lease.
        """
        had_lease = self._has_lease()

        async def update(config: StreamConfig) -> None:
            if had_lease and not self._has_lease():
                raise RpcError(
                    StatusCode.UNAVAILABLE, "the gateway has lost its lease during the change: retry"
                )
            await self._js.update_stream(config)

        return update

    async def is_recorded(self, record: StreamRecord, partition: int) -> bool:
        """Return whether messages on a partition's subject reach the partition.

        A partition whose record names a source must copy from it, and that source must record the subject.
        """
        name, source = record.stream_of(partition), record.partitions[partition].source
        recordings = {name: Recording.of((await self._js.stream(name)).cached_info.config)}
        if source is not None:
            with suppress(StreamNotFoundError):
                recordings[source] = Recording.of((await self._js.stream(source)).cached_info.config)
        return is_recorded(record, partition, recordings)

    async def wait_copied(self, copies: Iterable[tuple[StreamRecord, int]], timeout: float) -> None:
        """Wait until partitions have copied all messages of sources that no longer record their subjects.

        Args:
            copies: Records of the partitions, with their numbers.
            timeout: Seconds to wait for all of them together; 0 to check once.

        Partitions that do not exist are not waited for.

        Raises:
            RpcError: UNAVAILABLE: a partition has not copied all messages in that time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        for record, partition in copies:
            while (source := await self._uncopied(record, partition)) is not None:
                if loop.time() >= deadline:
                    text = (
                        f"partition {partition} of stream {record.name!r} has not copied all messages of "
                        f"{source} yet: the gateway keeps trying; delete that stream if it isn't needed"
                    )
                    raise RpcError(StatusCode.UNAVAILABLE, text)
                await asyncio.sleep(_LOOK)

    async def _uncopied(self, record: StreamRecord, partition: int) -> str | None:
        """Return a source that records the subject no longer and has messages to copy; None if none has.

        None stands for a partition that does not exist as well.

        Sequences are compared because the server reports lag 0 also before it starts to copy. The lag is used
        only if the copy's newest message was removed, and with it the last copied sequence.
        """
        try:
            copy = await self._js.stream(record.stream_of(partition))
        except StreamNotFoundError:
            return None  # removed by hand
        for source in copy.cached_info.config.sources:
            last = await self._last_to_copy(source, recorded_subject(record, partition))
            if last < (source.opt_start_seq or 1):
                continue
            copied = await _last_copied(copy, source)
            if copied is None:
                started = [one for one in copy.cached_info.sources if one.active >= 0]
                is_done = any(one.name == source.name and one.lag == 0 for one in started)
            else:
                is_done = copied >= last
            if not is_done:
                return source.name
        return None

    async def _last_to_copy(self, source: StreamSource, subject: str) -> int:
        """Return the sequence of a source's last message to copy; 0 if none or if it records the subject."""
        try:
            owner = await self._js.stream(source.name)
            if any(covers(other, subject) for other in owner.cached_info.config.subjects):
                return 0
            # Only the leader is certain to have the newest message.
            message = await owner.get_message(last_by_subject=copied_subject(source), direct=False)
        except (StreamNotFoundError, MessageNotFoundError):
            return 0
        return message.sequence

    async def _source(self, config: StreamConfig) -> StreamSource:
        """Return the source from which to copy a subject, beginning with its next message.

        Raises:
            RpcError: FAILED_PRECONDITION: no single stream records the whole subject. UNAVAILABLE: none
                records any of it now, because the one that did was removed or detached a moment ago.
        """
        (subject,) = config.subjects
        owners = [info async for info in self._js.streams(subject)]
        owners = [info for info in owners if info.config.name != config.name]
        if not owners:
            text = f"the stream that recorded {subject!r} is being changed: retry"
            raise RpcError(StatusCode.UNAVAILABLE, text)
        if len(owners) != 1 or not any(covers(other, subject) for other in owners[0].config.subjects):
            names = ", ".join(repr(info.config.name) for info in owners)
            raise RpcError(
                StatusCode.FAILED_PRECONDITION,
                f"the subject {subject!r} overlaps with those of {names}, none of which records all of it. "
                "JetStream records a subject in one stream only: create the stream with the wider one first",
            )
        owner = owners[0]
        whole = owner.config.subjects == (subject,)
        return StreamSource(
            name=owner.config.name,
            opt_start_seq=owner.state.last_seq + 1,
            filter_subject=None if whole else subject,
        )

    @staticmethod
    def _config(record: StreamRecord, partition: int) -> StreamConfig:
        age, intake = record.setting("retentionMaxAge") / 1000, record.intake_of(partition)
        return StreamConfig(
            name=record.stream_of(partition),
            description=f"partition {partition} of the Liftbridge stream {record.name}",
            subjects=(recorded_subject(record, partition),),
            max_bytes=record.setting("retentionMaxBytes") or -1,
            max_msgs=record.setting("retentionMaxMessages") or -1,
            max_age=max(age, _SHORTEST_AGE) if age else 0.0,
            num_replicas=record.replicas,
            allow_direct=True,
            metadata={RECORD_ID: record.id},
            # Removes the intake prefix, so that messages are stored under their original subjects.
            subject_transform=SubjectTransform(src=f"{intake}>", dest=">") if intake else None,
        )


async def _last_copied(copy: Stream, source: StreamSource) -> int | None:
    """Return the sequence in the source of the last copied message; None if the copy no longer has it."""
    newest = copy.cached_info.state.last_seq
    if not newest:
        return 0
    try:
        message = await copy.get_message(newest, direct=False)
    except MessageNotFoundError:
        return None
    return copied_sequence(message.headers.get(_COPIED_FROM, ""), source)
