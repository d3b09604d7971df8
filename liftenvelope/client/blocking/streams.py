"""Made of client/streams.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import Blocking

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftenvelope.client.client import Client
    from liftenvelope.client.metadata import Metadata, PartitionInfo

__all__ = ["BlockingStreams"]


class BlockingStreams(Blocking):
    """Part of a client: calls for whole streams and their metadata."""

    _async: Client

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
            >>> import liftenvelope
            >>> from liftenvelope.testing import run_liftbridge
            >>> def main(addresses):
            ...     with liftenvelope.connect_blocking(addresses) as client:
            ...         client.create_stream("orders", "orders-stream", partitions=3)
            ...         return client.fetch_metadata().partition_count("orders-stream")
            >>> with run_liftbridge() as cluster:
            ...     main(cluster.addresses)
            3
        """
        self._portal.call(
            self._async.create_stream(
                subject,
                name,
                group=group,
                partitions=partitions,
                replication_factor=replication_factor,
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
                timeout=timeout,
            )
        )

    def delete_stream(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a stream and all its messages.

        Args:
            name: Name of the stream.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: The stream does not exist.
            CallTimeoutError: No answer came in time. The stream may be deleted now or soon.
            TransportError: No broker could be reached.
        """
        self._portal.call(self._async.delete_stream(name, timeout=timeout))

    def pause_stream(
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
            resume_all: Whether a publish to one of the partitions wakes all of them. Default False.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            CallTimeoutError: No answer came in time. The partitions may be paused now or soon.
            TransportError: No broker could be reached.
        """
        self._portal.call(
            self._async.pause_stream(name, partitions=partitions, resume_all=resume_all, timeout=timeout)
        )

    def set_stream_readonly(
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
        self._portal.call(
            self._async.set_stream_readonly(name, partitions=partitions, readonly=readonly, timeout=timeout)
        )

    def fetch_metadata(
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
        return self._portal.call(self._async.fetch_metadata(streams=streams, groups=groups, timeout=timeout))

    def fetch_partition_metadata(
        self, stream: str, partition: int = 0, *, timeout: float | None = None
    ) -> PartitionInfo:
        """Ask the leader of a partition for the partition's state.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            timeout: Seconds for the whole call. Default: the client's ``timeout``.

        Returns:
            The state of the partition, with the leader's high watermark and newest offset.

        Raises:
            NoSuchStreamError: The stream does not exist.
            NoSuchPartitionError: The stream has no such partition.
            NotLeaderError: The partition had no leader in all that time: the partition is paused, or its
                brokers are down.
            CallTimeoutError: The leader did not answer in time.
            TransportError: No broker could be reached.
        """
        return self._portal.call(self._async.fetch_partition_metadata(stream, partition, timeout=timeout))
