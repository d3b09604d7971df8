"""Streams of a cluster: create, delete, pause, make read-only, fetch metadata."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final

from liftenvelope._checks import (
    MAX_INT32,
    MAX_INT64,
    as_count,
    as_flag,
    as_seconds,
    as_text,
    check_settings,
    check_stream_name,
)
from liftenvelope._pb import api_pb2
from liftenvelope.client.core import ClientContext, check_partition, check_stream
from liftenvelope.client.metadata import Metadata, PartitionInfo, partition_info
from liftenvelope.client.retries import READ_ONCE
from liftenvelope.errors import InternalError, StreamExistsError, UsageError, UsageTypeError
from liftenvelope.rpc.status import StatusCode

__all__ = ["MAX_REPLICATION", "Streams", "check_partitions", "check_subject"]

#: ``replication_factor`` for a replica of each partition on every broker of the cluster.
MAX_REPLICATION: Final = -1
# Characters that NATS does not allow in a subject.
_BAD_IN_SUBJECT: Final = frozenset(" \t\r\n\f\0")
# Bytes of a subject or queue group; both stand on one line of the NATS protocol. A NATS server closes a
# connection at a line of more than 4,096 bytes. A Liftbridge server then does not reconnect: it exits, or
# accepts no messages any more.
_LONGEST_SUBJECT: Final = 2000


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Optional settings of a new stream, in the units of the caller. None keeps the server's setting."""

    retention_max_bytes: int | None
    retention_max_messages: int | None
    retention_max_age: float | None
    cleaner_interval: float | None
    segment_max_bytes: int | None
    segment_max_age: float | None
    compact_max_goroutines: int | None
    compact_enabled: bool | None
    auto_pause_time: float | None
    auto_pause_disable_if_subscribers: bool | None
    min_isr: int | None
    optimistic_concurrency: bool | None
    encryption: bool | None


_FIELD_NAMES: Final = {"optimistic_concurrency": "optimisticConcurrencyControl"}
_SECONDS: Final = ("retention_max_age", "cleaner_interval", "segment_max_age", "auto_pause_time")
_FLAGS: Final = (
    "compact_enabled",
    "auto_pause_disable_if_subscribers",
    "optimistic_concurrency",
    "encryption",
)
_INT32: Final = ("compact_max_goroutines", "min_isr")


def _field_name(setting: str) -> str:
    first, *rest = setting.split("_")
    return _FIELD_NAMES.get(setting, first + "".join(word.capitalize() for word in rest))


def _wire_value(name: str, value: object) -> int | bool:
    """Return a setting in the API's units: times in milliseconds, rounded up because 0 means no limit."""
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise UsageTypeError(f"{name} must be True, False or None, got {value!r}")
        return value
    if name in _SECONDS:
        # check_settings refuses values that are too large.
        milliseconds = min(as_seconds(name, value, zero=True) * 1000, 2.0**63)
        nearest = round(milliseconds)
        # Undo float errors before rounding up: 16.1 s are 16100.000000000002 ms as a float and must not
        # become 16101 ms; 8464247.89 s are 8464247890.000001 ms.
        if nearest and math.isclose(milliseconds, nearest, rel_tol=5e-16, abs_tol=1e-6):
            return nearest
        return math.ceil(milliseconds)
    return as_count(name, value, 0, MAX_INT32 if name in _INT32 else MAX_INT64)


def _put_settings(request: api_pb2.CreateStreamRequest, settings: _Settings) -> None:
    given = {field.name: getattr(settings, field.name) for field in fields(settings)}
    for name, value in given.items():
        if value is None:
            continue
        wire = _wire_value(name, value)
        if not isinstance(wire, bool):
            check_settings({_field_name(name): wire})
        getattr(request, _field_name(name)).value = wire
        # Assigning 0, the default, does not mark the wrapper as present, and an absent wrapper stands for the
        # server's configuration.
        getattr(request, _field_name(name)).SetInParent()


def check_subject(subject: str, name: str = "subject") -> str:
    """Check a NATS subject that a stream can record and return it.

    Args:
        subject: The subject.
        name: Name of the argument, for the text of errors.

    Raises:
        UsageError: The subject is empty, too long for NATS, or has an empty part or a character that NATS
            does not allow.
        UsageTypeError: The subject is not a str.
    """
    _check_length(as_text(name, subject), name)
    if not all(subject.split(".")) or not _BAD_IN_SUBJECT.isdisjoint(subject):
        raise UsageError(f"{name} must have parts without blanks, with dots between them, got {subject!r}")
    return subject


def _check_length(text: str, name: str) -> None:
    if (size := len(text.encode())) > _LONGEST_SUBJECT:
        raise UsageError(
            f"{name} {text[:20]!r}... must be at most {_LONGEST_SUBJECT} bytes, got {size}: "
            "NATS can disconnect a server for more"
        )


def _check_recorded(subject: str, partitions: int) -> str:
    """Check that every partition of a stream can record its own subject, and return the stream's subject.

    Raises:
        UsageError: The subject is invalid. Or partition 1 would record a subject such as ``foo.>.1``: NATS
            then closes the server's connection, and all streams of the server stop recording.
    """
    parts = check_subject(subject).split(".")
    if ">" in parts[:-1]:
        raise UsageError(f"subject must have '>' as its last part only, got {subject!r}")
    if parts[-1] == ">" and partitions > 1:
        raise UsageError(
            f"partitions must be 1 for a subject that ends with '>', got {partitions} for {subject!r}"
        )
    return subject


def _check_group(group: str) -> str:
    _check_length(as_text("group", group), "group")
    if not _BAD_IN_SUBJECT.isdisjoint(group):
        raise UsageError(f"group must not have blanks, got {group!r}")
    return group


def _names(name: str, values: Sequence[str]) -> list[str]:
    if isinstance(values, str):
        raise UsageTypeError(f"{name} must be a list of names, got the str {values!r}")
    if not isinstance(values, Iterable):
        raise UsageTypeError(f"{name} must be a list of names, got {values!r}")
    return [check_stream(value) if name == "streams" else as_text(name, value) for value in values]


def check_partitions(partitions: Iterable[int] | None) -> list[int]:
    """Return numbers of partitions, sorted and without duplicates; an empty list for None, which means all.

    Raises:
        UsageError: There is no number, or a number is invalid.
        UsageTypeError: A number is not an int.
    """
    if partitions is None:
        return []
    if not isinstance(partitions, Iterable):
        raise UsageTypeError(f"partitions must be numbers of partitions, got {partitions!r}")
    numbers = sorted({check_partition(number) for number in partitions})
    if not numbers:  # the API treats an empty list as all partitions
        raise UsageError(f"partitions must have at least one number, or be None for all, got {partitions!r}")
    return numbers


def _replication_factor(value: int) -> int:
    return (
        MAX_REPLICATION if value == MAX_REPLICATION else as_count("replication_factor", value, 1, MAX_INT32)
    )


class Streams:
    """Part of a client: calls for whole streams and their metadata."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._cluster = context.cluster

    async def create_stream(
        self,
        subject: str,
        name: str,
        *,
        group: str = "",
        partitions: int = 1,
        replication_factor: int = 1,
        retention_max_bytes: int | None = None,
        retention_max_messages: int | None = None,
        retention_max_age: float | None = None,
        cleaner_interval: float | None = None,
        segment_max_bytes: int | None = None,
        segment_max_age: float | None = None,
        compact_enabled: bool | None = None,
        compact_max_goroutines: int | None = None,
        auto_pause_time: float | None = None,
        auto_pause_disable_if_subscribers: bool | None = None,
        min_isr: int | None = None,
        optimistic_concurrency: bool | None = None,
        encryption: bool | None = None,
        timeout: float | None = None,
    ) -> None:
        """Create a stream: a durable log that records the messages on a NATS subject.

        A setting of None keeps the server's configuration; 0 means no limit. Names and settings that would
        crash a Liftbridge server, some of them permanently, are refused here.

        Args:
            subject: NATS subject to record. Partition 0 records the subject itself, partition i > 0
                ``subject.i``. Other streams whose subjects cover these record the same messages.
            name: Name of the stream.
            group: NATS queue group of the partitions; empty, the default, for none. Each message goes to one
                of the streams with the same subject and group.
            partitions: Number of partitions. Default 1.
            replication_factor: Number of brokers that hold each partition. Default 1; ``MAX_REPLICATION`` for
                all.
            retention_max_bytes: Bytes that a partition keeps. The oldest segments are removed first.
            retention_max_messages: Messages that a partition keeps.
            retention_max_age: Seconds that a message is kept.
            cleaner_interval: Seconds between runs of the cleaner, which removes segments.
            segment_max_bytes: Bytes after which a segment of the log is full. Retention removes whole
                segments.
            segment_max_age: Seconds after which a segment is full.
            compact_enabled: Keep only the last message of each key, in full segments.
            compact_max_goroutines: Maximum workers for compaction.
            auto_pause_time: Seconds without a message after which a partition is paused.
            auto_pause_disable_if_subscribers: Do not pause a partition that has subscribers.
            min_isr: Number of replicas that must be in sync for a message with ``AckPolicy.ALL``.
            optimistic_concurrency: Refuse a message if its expected offset is not the next offset.
            encryption: Encrypt values on disk. The server must have a key.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            StreamExistsError: A stream with this name exists already.
            UsageError: An argument is invalid or would break the server. The error names the argument.
            ServerError: The server refused the request, with code INVALID_ARGUMENT for a bad subject or
                replication factor.
            CallTimeoutError: No answer came in time. The stream may exist now or soon.
            TransportError: No broker could be reached.

        Example:
            >>> import asyncio, liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> async def main(addresses):
            ...     async with liftenvelope.connect(addresses) as client:
            ...         await client.create_stream("orders", "orders-stream", partitions=3)
            ...         return (await client.fetch_metadata()).partition_count("orders-stream")
            >>> with run_liftbridge() as cluster:
            ...     asyncio.run(main(cluster.addresses))
            3
        """
        check_stream_name(check_stream(name))
        request = api_pb2.CreateStreamRequest(
            subject=_check_recorded(subject, partitions),
            name=name,
            group=_check_group(group),
            partitions=as_count("partitions", partitions, 1, MAX_INT32),
            replicationFactor=_replication_factor(replication_factor),
        )
        settings = _Settings(
            retention_max_bytes=retention_max_bytes,
            retention_max_messages=retention_max_messages,
            retention_max_age=retention_max_age,
            cleaner_interval=cleaner_interval,
            segment_max_bytes=segment_max_bytes,
            segment_max_age=segment_max_age,
            compact_enabled=compact_enabled,
            compact_max_goroutines=compact_max_goroutines,
            auto_pause_time=auto_pause_time,
            auto_pause_disable_if_subscribers=auto_pause_disable_if_subscribers,
            min_isr=min_isr,
            optimistic_concurrency=optimistic_concurrency,
            encryption=encryption,
        )
        _put_settings(request, settings)
        await self._create(request, timeout)

    async def _create(self, request: api_pb2.CreateStreamRequest, timeout: float | None) -> None:
        deadline, about = self._context.deadline(timeout), f"stream {request.name!r}"
        answer = await self._context.call(
            "CreateStream", request, api_pb2.CreateStreamResponse, deadline, about
        )
        self._cluster.forget(request.name)
        if answer is not None:
            return
        # The stream exists, and the answer to an earlier attempt was lost. That attempt created the stream if
        # subject and number of partitions are the requested ones.
        found = await self._cluster.stream(request.name, deadline, refresh=True)
        if found.subject != request.subject or len(found.partitions) != request.partitions:
            raise StreamExistsError(StatusCode.ALREADY_EXISTS, f"{about}: another stream has that name")

    async def delete_stream(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a stream and all its messages.

        Args:
            name: Name of the stream.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: The stream does not exist.
            CallTimeoutError: No answer came in time. The stream may be deleted now or soon.
            TransportError: No broker could be reached.
        """
        request = api_pb2.DeleteStreamRequest(name=check_stream(name))
        about = f"stream {name!r}"
        await self._context.call(
            "DeleteStream", request, api_pb2.DeleteStreamResponse, self._context.deadline(timeout), about
        )
        self._cluster.deleted(name)

    async def pause_stream(
        self,
        name: str,
        *,
        partitions: Iterable[int] | None = None,
        resume_all: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Pause partitions: they close their files and their NATS subscriptions until they are woken.

        A publish through this client wakes a partition, and so does a subscription with ``resume=True``.
        Messages that are published directly on NATS in the meantime are lost.

        Args:
            name: Name of the stream.
            partitions: Numbers of the partitions; None, the default, for all.
            resume_all: Whether a publish to any partition of the stream wakes all paused ones. Default False.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            CallTimeoutError: No answer came in time. The partitions may be paused now or soon.
            TransportError: No broker could be reached.
        """
        numbers = check_partitions(partitions)
        request = api_pb2.PauseStreamRequest(
            name=check_stream(name), partitions=numbers, resumeAll=as_flag("resume_all", resume_all)
        )
        about = f"stream {name!r}"
        await self._context.call(
            "PauseStream", request, api_pb2.PauseStreamResponse, self._context.deadline(timeout), about
        )

    async def set_stream_readonly(
        self,
        name: str,
        *,
        partitions: Iterable[int] | None = None,
        readonly: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Make partitions read-only, or writable again. A read-only partition refuses messages.

        Subscriptions to a read-only partition end at its last message.

        Args:
            name: Name of the stream.
            partitions: Numbers of the partitions; None, the default, for all.
            readonly: True, the default, for read-only; False for writable.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            CallTimeoutError: No answer came in time. The change may take effect now or soon.
            TransportError: No broker could be reached.
        """
        numbers = check_partitions(partitions)
        request = api_pb2.SetStreamReadonlyRequest(
            name=check_stream(name), partitions=numbers, readonly=as_flag("readonly", readonly)
        )
        deadline, about = self._context.deadline(timeout), f"stream {name!r}"
        await self._context.call(
            "SetStreamReadonly", request, api_pb2.SetStreamReadonlyResponse, deadline, about
        )

    async def fetch_metadata(
        self,
        *,
        streams: Sequence[str] | None = None,
        groups: Sequence[str] = (),
        timeout: float | None = None,
    ) -> Metadata:
        """Fetch the metadata of brokers, streams and consumer groups from the cluster.

        The call never answers from a cache. If a broker does not know everything that is requested, as in a
        new cluster, the call asks other brokers too and merges their answers.

        Args:
            streams: Names of streams; None, the default, for all.
            groups: Names of consumer groups. Servers list no groups that are not named.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            The metadata, without streams and groups that do not exist.

        Raises:
            CallTimeoutError: No broker answered in time.
            TransportError: No broker could be reached.
        """
        wanted = None if streams is None else _names("streams", streams)
        group_names = _names("groups", groups)
        return await self._cluster.fetch(wanted, group_names, deadline=self._context.deadline(timeout))

    async def fetch_partition_metadata(
        self,
        stream: str,
        partition: int = 0,
        *,
        wait_for_leader: bool = True,
        timeout: float | None = None,
    ) -> PartitionInfo:
        """Ask the leader of a partition for the partition's state.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            wait_for_leader: True (default) to wait while the partition has no leader. False to look for it
                once more and then raise NotLeaderError, such as for a partition that may be paused.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            The state of the partition, with the leader's high watermark and newest offset.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            NotLeaderError: The partition had no leader in all that time, or at all without
                ``wait_for_leader``: the partition is paused, or its brokers are down.
            CallTimeoutError: The leader did not answer in time.
            TransportError: No broker could be reached.
        """
        deadline = self._context.deadline(timeout)
        request = api_pb2.FetchPartitionMetadataRequest(
            stream=check_stream(stream), partition=check_partition(partition)
        )
        answer = await self._context.call(
            "FetchPartitionMetadata",
            request,
            api_pb2.FetchPartitionMetadataResponse,
            deadline,
            f"{stream}[{partition}]",
            self._cluster.leader_of(stream, partition, wait=wait_for_leader),
            None if wait_for_leader else READ_ONCE,
        )
        if answer is None:
            raise InternalError("a call without effect counted as done")
        return partition_info(answer.metadata)
