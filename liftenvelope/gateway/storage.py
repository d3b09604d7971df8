"""Partitions as JetStream streams: made, fed from their subject or from another stream, looked at, removed.

JetStream records a subject in one stream only, Liftbridge in any number. So the first stream on a subject
records it, and those that come later copy from that one (JetStream calls it sourcing), from the message on
that is next when they are made. When the first one stops recording, because it is paused, made readonly or
deleted, one of the copies takes the subject over.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    NoJetStreamError,
    StreamNotFoundError,
    SubjectsOverlapError,
)
from liftenvelope.gateway.names import encode_name
from liftenvelope.gateway.replicas import Replicas
from liftenvelope.jetstream.infos import StreamInfo
from liftenvelope.jetstream.stream_config import StreamConfig, StreamSource, SubjectTransform
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway.records import StreamRecord
    from liftenvelope.jetstream.context import JetStream

__all__ = ["PartitionState", "Storage", "parse_ns"]

_log: Final = logging.getLogger("liftenvelope.gateway")

#: What a partition records that records nothing: JetStream would take its name for a subject otherwise.
_NOTHING: Final = "_lift.nothing."
#: The shortest that JetStream keeps a message, in seconds.
_SHORTEST_AGE: Final = 0.1
_MOST_REPLICAS: Final = 5
#: How long a copy may take to have all of what it copies from, in seconds, and how often to look.
_CATCH_UP: Final = 5.0
_LOOK: Final = 0.01
#: How long a copy that was made just now may take to begin, in seconds.
_BEGINNING: Final = 0.5
_STREAM_SETTING: Final = "liftenvelope"
#: Partitions that are asked for one by one. More are read from the list of all streams, 256 in a request.
_ONE_BY_ONE: Final = 64
#: Seconds for which that list is used again, and seconds for a page of it.
_LIST_AGE: Final = 1.0
_PAGE_TIMEOUT: Final = 2.0
_PAGES_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What is in a partition.

    Attributes:
        oldest: Offset of the oldest message; of an empty partition the one that the next gets.
        newest: Offset of the newest message that there ever was, -1 for none.
        messages: How many there are.
        bytes: How large they are.
        first_ns: When the oldest came, 0 for none.
        latest_ns: When the newest came, 0 for none.
    """

    oldest: int
    newest: int
    messages: int
    bytes: int
    first_ns: int
    latest_ns: int

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> PartitionState:
        """Read JetStream's description of a stream's state."""
        last, messages = int(state["last_seq"]), int(state["messages"])
        first = int(state["first_seq"]) if messages else last + 1
        first_ns = parse_ns(state["first_ts"]) if messages else 0
        latest_ns = parse_ns(state["last_ts"]) if last else 0
        return cls(first - 1, last - 1, messages, int(state["bytes"]), first_ns, latest_ns)

    @property
    def is_empty(self) -> bool:
        """Whether there is no message."""
        return not self.messages


def parse_ns(text: str) -> int:
    """Return the nanoseconds since 1970 of a time as JetStream writes it, 0 for its zero time.

    Example:
        >>> parse_ns("2026-01-02T03:04:05.123456789Z")
        1767323045123456789
    """
    whole, _, rest = text.partition(".")
    if whole.startswith("0001-"):
        return 0
    digits = rest.rstrip("Z") if rest else ""
    if "+" in digits or "-" in digits or (not rest and not text.endswith("Z")):
        return int(datetime.fromisoformat(text).timestamp() * 1_000_000) * 1000
    seconds = int(datetime.fromisoformat(f"{whole.rstrip('Z')}+00:00").timestamp())
    return seconds * 1_000_000_000 + int(digits.ljust(9, "0") or 0)


class Storage:
    """Keeps partitions in JetStream.

    Args:
        js: JetStream.

    Attributes:
        replicas: Which replicas of partitions are in sync.
    """

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self.replicas = Replicas(js)
        # The states of all partitions, and when they were read.
        self._listed: dict[str, PartitionState] = {}
        self._listed_at = -_LIST_AGE
        self._listing = asyncio.Lock()

    async def state(self, stream: str) -> PartitionState:
        """What is in a partition, by the name of its JetStream stream.

        Raises:
            StreamNotFoundError: It is gone.
        """
        answer = await self._js.api.request(f"STREAM.INFO.{stream}")
        return PartitionState.from_json(answer["state"])

    async def states(self, streams: list[str]) -> dict[str, PartitionState]:
        """What is in each of these partitions; those that are gone are left out.

        Of more than 64 partitions the states may be a second old. While JetStream does not answer they are
        older, or left out: clients need the rest of the metadata to find another gateway.
        """
        if len(streams) > _ONE_BY_ONE:
            listed = await self._all_states()
            return {stream: listed[stream] for stream in streams if stream in listed}
        found = await asyncio.gather(*(self.state(stream) for stream in streams), return_exceptions=True)
        states = {}
        for stream, state in zip(streams, found, strict=True):
            if isinstance(state, PartitionState):
                states[stream] = state
            elif not isinstance(state, StreamNotFoundError):
                raise state
        return states

    async def _all_states(self) -> dict[str, PartitionState]:
        """The states of all partitions, read at most once a second for all who ask."""
        async with self._listing:
            now = asyncio.get_running_loop().time()
            if now - self._listed_at >= _LIST_AGE:
                try:
                    self._listed = await self._list()
                except (CallTimeoutError, NoJetStreamError) as exc:
                    _log.warning("metadata is out of date: JetStream does not list its streams: %s", exc)
                self._listed_at = asyncio.get_running_loop().time()
        return self._listed

    async def _list(self) -> dict[str, PartitionState]:
        states: dict[str, PartitionState] = {}
        total, limit = await self._list_page(states, 0)
        for start in range(limit, total, limit * _PAGES_AT_ONCE):
            offsets = range(start, min(start + limit * _PAGES_AT_ONCE, total), limit)
            await asyncio.gather(*(self._list_page(states, offset) for offset in offsets))
        return states

    async def _list_page(self, states: dict[str, PartitionState], offset: int) -> tuple[int, int]:
        """Read a page of the list; return how many streams there are, and how many a page has."""
        request = {"offset": offset}
        answer = await self._js.api.request("STREAM.LIST", request, timeout=_PAGE_TIMEOUT)
        for info in answer.get("streams") or []:
            states[info["config"]["name"]] = PartitionState.from_json(info["state"])
        return answer.get("total", 0), max(answer.get("limit", 0), 1)

    async def most_replicas(self) -> int:
        """How many servers can keep a stream, at most: as many as the cluster has, but no more than five."""
        name = f"lift_probe_{encode_name(self._js.api.nc.new_inbox()[-12:])}"
        for replicas in range(_MOST_REPLICAS, 1, -1):
            config = StreamConfig(name=name, subjects=(_NOTHING + name,), num_replicas=replicas)
            try:
                await self._js.create_stream(config)
            except JetStreamError:
                continue
            await self._js.delete_stream(name)
            return replicas
        return 1

    async def create(self, record: StreamRecord, partition: int) -> str | None:
        """Make a partition; return the stream that it copies from, None if it records its subject itself.

        Raises:
            RpcError: Its subject is recorded in a way that it can't be copied from.
            JetStreamError: JetStream makes no such stream.
        """
        config = self._config(record, partition)
        try:
            await self._js.create_stream(config)
        except SubjectsOverlapError:
            source = await self._source(config)
            await self._js.create_stream(replace(config, subjects=(), sources=(source,)))
            return source.name
        return None

    async def delete(self, record: StreamRecord, partition: int) -> None:
        """Remove a partition with all that is in it. One that is gone already is fine."""
        try:
            await self._js.delete_stream(record.stream_of(partition))
        except StreamNotFoundError:
            return

    async def attach(self, record: StreamRecord, partition: int) -> str | None:
        """Have a partition record its subject, or copy from the stream that does: return that one."""
        current = (await self._js.stream(record.stream_of(partition))).cached_info.config
        config = replace(current, subjects=(_recorded(record, partition),), sources=())
        try:
            await self._js.update_stream(config)
        except SubjectsOverlapError:
            source = await self._source(config)
            # In two steps: what was copied before must not count for the new source.
            await self._js.update_stream(replace(config, subjects=(_NOTHING + config.name,)))
            await self._js.update_stream(replace(config, subjects=(), sources=(source,)))
            return source.name
        return None

    async def detach(self, record: StreamRecord, partition: int) -> None:
        """Have a partition record nothing."""
        name = record.stream_of(partition)
        current = (await self._js.stream(name)).cached_info.config
        config = replace(current, subjects=(_NOTHING + name,), sources=())
        if config != current:
            await self._js.update_stream(config)

    async def is_recorded(self, record: StreamRecord, partition: int) -> bool:
        """Whether what is published on a partition's subject gets there, directly or as its record says."""
        config = (await self._js.stream(record.stream_of(partition))).cached_info.config
        subject, source = _recorded(record, partition), record.partitions[partition].source
        if source is None:
            return config.subjects == (subject,)
        if source not in [one.name for one in config.sources]:
            return False
        try:
            owner = (await self._js.stream(source)).cached_info.config
        except StreamNotFoundError:
            return False
        return any(covers(other, subject) for other in owner.subjects)

    async def wait_copied(self, stream: str) -> None:
        """Wait until a stream has copied all that is in the one that it copies from, if that is soon."""
        began = now = asyncio.get_running_loop().time()
        while now - began < _CATCH_UP:
            info: StreamInfo = (await self._js.stream(stream)).cached_info
            # One that nothing ever came to from its source says the same as one that has yet to begin.
            idle = now - began > _BEGINNING or all(source.active >= 0 for source in info.sources)
            if idle and all(source.lag == 0 for source in info.sources):
                return
            await asyncio.sleep(_LOOK)
            now = asyncio.get_running_loop().time()

    async def _source(self, config: StreamConfig) -> StreamSource:
        """The stream to copy a subject from, beginning with its next message."""
        (subject,) = config.subjects
        owners = [info async for info in self._js.streams(subject)]
        owners = [info for info in owners if info.config.name != config.name]
        if len(owners) != 1 or not any(covers(other, subject) for other in owners[0].config.subjects):
            names = ", ".join(repr(info.config.name) for info in owners) or "another JetStream stream"
            raise RpcError(
                StatusCode.FAILED_PRECONDITION,
                f"the subject {subject!r} overlaps with those of {names}, none of which records all of it. "
                "JetStream keeps a subject in one stream only: make the stream with the wider subject first",
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
            subjects=(_recorded(record, partition),),
            max_bytes=record.setting("retentionMaxBytes") or -1,
            max_msgs=record.setting("retentionMaxMessages") or -1,
            max_age=max(age, _SHORTEST_AGE) if age else 0.0,
            num_replicas=record.replicas,
            allow_direct=True,
            metadata={_STREAM_SETTING: record.id},
            # What goes through a gateway is stored under the subject that it came on.
            subject_transform=SubjectTransform(src=f"{intake}>", dest=">") if intake else None,
        )


def _recorded(record: StreamRecord, partition: int) -> str:
    """The subject that JetStream records for a partition."""
    intake = record.intake_of(partition)
    return f"{intake}>" if intake else record.subject_of(partition)


def covers(wide: str, subject: str) -> bool:
    """Whether a subject, perhaps with wildcards, stands for all that another one stands for.

    Example:
        >>> covers("a.*", "a.b"), covers("a.>", "a.*.c"), covers("a.*", "a.>")
        (True, True, False)
    """
    parts, wanted = wide.split("."), subject.split(".")
    for number, part in enumerate(parts):
        if part == ">":
            return len(wanted) > number
        if number >= len(wanted):
            return False
        if part != wanted[number] and (part != "*" or wanted[number] == ">"):
            return False
    return len(parts) == len(wanted)
