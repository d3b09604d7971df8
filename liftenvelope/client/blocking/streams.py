"""Made of client/streams.py by protos/generate_blocking.py. Don't edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope.client.blocking._base import BlockingCore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from liftenvelope.client.metadata import Metadata, PartitionInfo
    from liftenvelope.client.streams import StreamsMixin

__all__ = ["BlockingStreams"]


class BlockingStreams(BlockingCore):
    """The part of the client that has to do with streams as a whole."""

    _async: StreamsMixin

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
        """Create a stream: a durable log that records what is published on a NATS subject.

        Settings that are None are as the server is configured; 0 is no limit. Names and settings that would
        kill a Liftbridge server, some of them for good, are refused here.

        Args:
            subject: What to record. Partition 0 records the subject itself, partition i > 0 ``subject.i``;
                another stream whose subject covers those records the messages as well.
            name: By which the stream is known.
            group: NATS queue group that the partitions join: of several streams with the same subject and
                group, one gets each message. Empty for none.
            partitions: How many.
            replication_factor: How many brokers hold each partition; ``MAX_REPLICATION`` for all.
            retention_max_bytes: Bytes that a partition keeps, oldest segments go first.
            retention_max_messages: Messages that a partition keeps.
            retention_max_age: Seconds that a message is kept.
            cleaner_interval: Seconds between looks for what can go.
            segment_max_bytes: Bytes after which a segment of the log is full; what can go, goes by segments.
            segment_max_age: Seconds after which a segment is full.
            compact_enabled: Keep only the last message of each key, of full segments.
            compact_max_goroutines: How many workers that may take.
            auto_pause_time: Seconds without a message after which a partition is paused.
            auto_pause_disable_if_subscribers: Not while somebody is subscribed.
            min_isr: How many replicas must be in sync for a message with ``AckPolicy.ALL``.
            optimistic_concurrency: Refuse messages whose expected offset is not the one that they would get.
            encryption: Encrypt values on disk. The server needs its key.
            timeout: Seconds for all of it; default: the client's.

        Raises:
            StreamExistsError: There is a stream of that name already.
            UsageError: An argument makes no sense, or would break the server; it is named.
            ServerError: The server refused it, with code INVALID_ARGUMENT for a bad subject or replication
                factor.
            CallTimeoutError: No answer came: the stream may exist, now or soon.
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
        """Delete a stream and all that it holds.

        Args:
            name: Its name.
            timeout: Seconds for all of it; default: the client's.

        Raises:
            NoSuchStreamError: There is none.
            CallTimeoutError: No answer came: it may be gone, now or soon.
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
        """Have partitions let go of their files and of their NATS subscription until they are needed again.

        A publish through this client wakes a partition, and so does a subscription with ``resume=True``. What
        is published straight on NATS in the meantime is lost.

        Args:
            name: Name of the stream.
            partitions: Numbers of its partitions, None for all.
            resume_all: Whether a publish to one of them wakes them all.
            timeout: Seconds for all of it; default: the client's.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: It has no such partition.
            CallTimeoutError: No answer came: they may be paused, now or soon.
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
        """Have partitions refuse messages, or take them again.

        Subscriptions to a read-only partition end once they have read all of it.

        Args:
            name: Name of the stream.
            partitions: Numbers of its partitions, None for all.
            readonly: Whether to refuse.
            timeout: Seconds for all of it; default: the client's.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: It has no such partition.
            CallTimeoutError: No answer came: it may be done, now or soon.
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
        """Ask the cluster what it knows of brokers, streams and consumer groups.

        It always asks a server; where that does not know all of what is asked, as happens in a young cluster,
        it asks others as well and puts together what they say.

        Args:
            streams: Names of streams; None, the default, for all.
            groups: Names of consumer groups. Servers list none by themselves.
            timeout: Seconds for all of it; default: the client's.

        Returns:
            What there is. A stream or group that does not exist is left out.

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
            timeout: Seconds for all of it; default: the client's.

        Returns:
            The partition, with its high watermark and newest offset as the leader sees them.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: It has no such partition.
            NotLeaderError: It had no leader in all that time: it is paused, or its brokers are down.
            CallTimeoutError: The leader did not answer in time.
            TransportError: No broker could be reached.
        """
        return self._portal.call(self._async.fetch_partition_metadata(stream, partition, timeout=timeout))
