"""Types of client/blocking.py. Made by protos/generate_blocking.py. Don't edit."""

import concurrent.futures
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, overload

import pyarrow as pa
from typing_extensions import Buffer

from liftenvelope.client.activity import ActivityEvent
from liftenvelope.client.binding import Blocking, BlockingReader
from liftenvelope.client.checkpointer import _T
from liftenvelope.client.consumer_options import PartitionsCallback
from liftenvelope.client.events import EventHandler
from liftenvelope.client.health import HealthStatus
from liftenvelope.client.metadata import Metadata, PartitionInfo
from liftenvelope.client.options import BrokerSelection
from liftenvelope.client.positions import Start, Stop
from liftenvelope.client.publish_many import Item
from liftenvelope.client.publish_summary import PublishSummary
from liftenvelope.envelope import Ack, AckPolicy, Message
from liftenvelope.partition import PartitionChoice, Partitioner

__all__ = [
    "BlockingActivityStream",
    "BlockingCheckpointer",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingMergedSubscription",
    "BlockingSubscription",
    "connect_blocking",
]

class BlockingCheckpointer(Blocking):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def start(self, partition: int, default: _T | str = "earliest") -> int | _T | str: ...
    @overload
    def processed(self, message: Message, /) -> None: ...
    @overload
    def processed(self, partition: int, offset: int, /) -> None: ...
    @overload
    def delivered(self, message: Message, /) -> None: ...
    @overload
    def delivered(self, partition: int, offset: int, /) -> None: ...
    def flush(self, *, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...
    def lag(self, partition: int, *, timeout: float | None = None) -> int: ...
    def reset(self, partition: int, *, timeout: float | None = None) -> None: ...

class BlockingSubscription(BlockingReader):
    @property
    def finished(self) -> bool: ...
    def open(self) -> Self: ...
    def close(self) -> None: ...
    def next(self, timeout: float | None = None) -> Message | None: ...
    def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> Iterator[list[Message]]: ...
    def arrow_batches(self, max_rows: int = 65536, *, max_wait: float = 1.0) -> Iterator[pa.RecordBatch]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    @property
    def stream(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def position(self) -> int | None: ...
    @property
    def positions(self) -> dict[tuple[str, int], int | None]: ...

class BlockingMergedSubscription(BlockingReader):
    @property
    def finished(self) -> bool: ...
    def open(self) -> Self: ...
    def close(self) -> None: ...
    def next(self, timeout: float | None = None) -> Message | None: ...
    def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> Iterator[list[Message]]: ...
    def arrow_batches(self, max_rows: int = 65536, *, max_wait: float = 1.0) -> Iterator[pa.RecordBatch]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    @property
    def stream(self) -> str: ...
    @property
    def positions(self) -> dict[tuple[str, int], int | None]: ...

class BlockingActivityStream(Blocking):
    @property
    def position(self) -> int | None: ...
    @property
    def finished(self) -> bool: ...
    def open(self) -> Self: ...
    def close(self) -> None: ...
    def next(self, timeout: float | None = None) -> ActivityEvent | None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> ActivityEvent: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class BlockingConsumer(Blocking):
    @property
    def group(self) -> str: ...
    @property
    def consumer_id(self) -> str: ...
    @property
    def assignment(self) -> frozenset[tuple[str, int]]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def open(self) -> Self: ...
    def close(self) -> None: ...
    def __iter__(self) -> Self: ...
    def batches(self, max_messages: int = 1000, max_wait: float = 0.1) -> Iterator[list[Message]]: ...
    @property
    def epoch(self) -> int: ...
    def position(self, stream: str, partition: int) -> int | None: ...
    def lag(self, *, timeout: float | None = None) -> dict[tuple[str, int], int]: ...
    def __next__(self) -> Message: ...
    def commit(self, message: Message | None = None, *, timeout: float | None = None) -> None: ...
    def pause(self, stream: str, partition: int) -> None: ...
    def resume(self, stream: str, partition: int) -> None: ...
    def seek(self, stream: str, partition: int, offset: int) -> None: ...

class BlockingClient(Blocking):
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def publish_many(
        self,
        stream: str,
        messages: Iterable[Item],
        *,
        max_in_flight: int = 1000,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = ...,
        timeout: float | None = None,
        retry_unacked: bool = False,
        on_error: Literal["raise", "collect"] = "raise",
    ) -> PublishSummary: ...
    def publish_acks(
        self,
        stream: str,
        messages: Iterable[Item],
        *,
        max_in_flight: int = 1000,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = ...,
        timeout: float | None = None,
        retry_unacked: bool = False,
        on_error: Literal["raise", "collect"] = "raise",
    ) -> Iterator[tuple[int, Ack]]: ...
    def publish(
        self,
        stream: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = ...,
        ack_inbox: str | None = None,
        correlation_id: str | None = None,
        expected_offset: int = -1,
        timeout: float | None = None,
        retry_unacked: bool = False,
    ) -> Ack | None: ...
    def publish_async(
        self,
        stream: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = ...,
        ack_inbox: str | None = None,
        correlation_id: str | None = None,
        expected_offset: int = -1,
        timeout: float | None = None,
        retry_unacked: bool = False,
        max_outstanding: int = 10000,
    ) -> concurrent.futures.Future[Ack | None]: ...
    def publish_to_subject(
        self,
        subject: str,
        value: Buffer,
        *,
        key: Buffer | None = None,
        headers: Mapping[str, Buffer] | None = None,
        ack_policy: AckPolicy | int = ...,
        ack_inbox: str | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
    ) -> Ack | None: ...
    def flush(self) -> None: ...
    def create_stream(
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
    ) -> None: ...
    def delete_stream(self, name: str, *, timeout: float | None = None) -> None: ...
    def pause_stream(
        self,
        name: str,
        *,
        partitions: Iterable[int] | None = None,
        resume_all: bool = False,
        timeout: float | None = None,
    ) -> None: ...
    def set_stream_readonly(
        self,
        name: str,
        *,
        partitions: Iterable[int] | None = None,
        readonly: bool = True,
        timeout: float | None = None,
    ) -> None: ...
    def fetch_metadata(
        self,
        *,
        streams: Sequence[str] | None = None,
        groups: Sequence[str] = ...,
        timeout: float | None = None,
    ) -> Metadata: ...
    def fetch_partition_metadata(
        self, stream: str, partition: int = 0, *, timeout: float | None = None
    ) -> PartitionInfo: ...
    def check_health(
        self, *, service: str = "proto.API", timeout: float | None = None
    ) -> dict[str, HealthStatus]: ...
    def set_cursor(
        self, cursor_id: str, stream: str, partition: int, offset: int, *, timeout: float | None = None
    ) -> None: ...
    def reset_cursor(
        self, cursor_id: str, stream: str, partition: int, *, timeout: float | None = None
    ) -> None: ...
    def fetch_cursor(
        self, cursor_id: str, stream: str, partition: int, *, timeout: float | None = None
    ) -> int | None: ...
    def checkpointer(
        self, cursor_id: str, stream: str, *, every_messages: int = 1000, every_seconds: float = 5.0
    ) -> BlockingCheckpointer: ...
    @overload
    def subscribe(
        self,
        stream: str,
        *,
        partition: int = 0,
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> BlockingSubscription: ...
    @overload
    def subscribe(
        self,
        stream: str,
        *,
        partition: Literal["all"],
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> BlockingMergedSubscription: ...
    @overload
    def subscribe(
        self,
        stream: str,
        *,
        partitions: Literal["all"] | Iterable[int],
        start: Start | None = None,
        stop: Stop = None,
        read_isr_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
    ) -> BlockingMergedSubscription: ...
    def activity(self, *, start: Start = "new", stop: Stop = None) -> BlockingActivityStream: ...
    def consumer(
        self,
        group: str,
        streams: str | Iterable[str],
        *,
        consumer_id: str | None = None,
        auto_commit_interval: float | None = 5.0,
        auto_offset: Literal["new", "earliest", "latest", "error"] = "new",
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        resume: bool = False,
    ) -> BlockingConsumer: ...

def connect_blocking(
    addresses: str | Iterable[str],
    *,
    tls: ssl.SSLContext | bool | None = None,
    tls_server_name: str | Mapping[str, str] | None = None,
    timeout: float = 10.0,
    ack_wait: float = 5.0,
    resubscribe_wait: float = 30.0,
    connect_timeout: float = 5.0,
    max_conns_per_broker: int = 2,
    keep_alive_time: float = 30.0,
    ping_interval: float | None = 30.0,
    metadata_max_age: float = 60.0,
    max_message_bytes: int = 4194304,
    max_header_bytes: int = 65536,
    max_brokers: int = 1000,
    max_partitions: int = 100000,
    prefetch_bytes: int = 8388608,
    prefetch_messages: int | None = None,
    broker_selection: BrokerSelection = "random",
    address_map: Mapping[str, str] | None = None,
    on_event: EventHandler | None = None,
) -> BlockingClient: ...
