"""Blocking requests to the brokers of a Liftbridge cluster, tried one broker after another."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client.failures import call_error, decode
from liftenvelope.client.metadata import (
    Metadata,
    PartitionInfo,
    StreamInfo,
    creation_time,
    decode_metadata,
    partition_info,
)
from liftenvelope.client.options import server_name_of
from liftenvelope.client.publish_permission import permission_request
from liftenvelope.client.retries import RETRIES, Fate, fate_of
from liftenvelope.errors import (
    NoSuchPartitionError,
    NoSuchStreamError,
    NotLeaderError,
    TransportError,
    UsageError,
)
from liftenvelope.rpc.blocking import BlockingChannel
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.bulk.access import Target
    from liftenvelope.rpc.blocking import ResponseStream

__all__ = ["Brokers"]

_T = TypeVar("_T")
#: Minimum number of rounds, and seconds between rounds, to look for a stream that a broker does not know. The
#: next broker may know the stream, or the same broker a little later.
_LATE_ROUNDS: Final = 3
_LATE_PAUSE: Final = 0.1
#: Seconds that metadata may be used to find leaders and partitions. A read or write asks for each partition,
#: and every answer lists all of them.
_MAX_AGE: Final = 1.0


class Brokers:
    """Requests to the brokers of a cluster. Thread-safe: a lock serializes the calls.

    Args:
        target: Addresses of some brokers, and connection options.
    """

    def __init__(self, target: Target) -> None:
        self._access = target.access
        self._secure = target.secure
        self._seeds = [str(address) for address in target.addresses]
        self._named: list[str] = []
        # Index of the broker to ask first: a broker that does not know a stream is not asked again at once.
        self._first = 0
        self._channels: dict[str, BlockingChannel] = {}
        # Metadata by stream, and when it came.
        self._kept: dict[str, tuple[Metadata, float]] = {}
        self._lock = threading.RLock()
        self._check: Callable[[], None] = lambda: None

    def checked(self, check: Callable[[], None]) -> Brokers:
        """Return the same brokers, over the same connections, whose calls first call a function.

        An error of the function ends the call, after the wait for the calls of other threads.
        """
        found = copy.copy(self)
        found._check = check
        return found

    def close(self) -> None:
        """Close every connection. With ``Access.idle``, that keeps them."""
        idle = self._access.idle
        with self._lock:
            for address, channel in self._channels.items():
                if idle is None:
                    channel.close()
                else:
                    idle.put(channel, address)
            self._channels.clear()

    def new_channel(self, address: str) -> BlockingChannel:
        """Return a new connection to a broker, owned by the caller.

        Raises:
            TransportError: The cluster advertises an invalid address.
        """
        access = self._access
        try:
            return BlockingChannel(
                access.reachable(address),
                tls=access.context if self._secure else None,
                server_name=server_name_of(access.tls_server_name, address),
                connect_timeout=access.connect_timeout,
                max_message=access.max_message_bytes,
                max_header_list=access.max_header_bytes,
                window=access.prefetch_bytes,
            )
        except UsageError as exc:
            raise CallNotProcessedError(str(exc)) from exc

    def _channel(self, address: str) -> BlockingChannel:
        if address not in self._channels:
            idle = self._access.idle
            kept = None if idle is None else idle.take(address)
            self._channels[address] = kept if isinstance(kept, BlockingChannel) else self.new_channel(address)
        return self._channels[address]

    # Calls

    def _call(
        self,
        method: str,
        request: bytes,
        find: Callable[[int], str],
        about: str,
        deadline: Deadline | None = None,
    ) -> bytes:
        """Call a read-only method with retries until the deadline.

        Args:
            method: Name of the method.
            request: Encoded request.
            find: Returns the address of the broker to ask on each attempt.
            about: Subject of the call, for error messages.
            deadline: End of all attempts. Default: the ``timeout`` of the access.
        """
        deadline, attempt = deadline or Deadline(self._access.timeout), 0
        limit = RETRIES[method].attempt_timeout
        while True:
            try:
                return self._call_once(
                    method, request, find, attempt, min(deadline.left, limit or deadline.left)
                )
            except (RpcError, TransportError) as exc:
                # A transport error after two rounds over all brokers: none is up, so do not wait longer.
                nobody = isinstance(exc, TransportError) and attempt >= 2 * len(self.addresses())
                if fate_of(exc) is Fate.REFUSED or deadline.is_over or nobody:
                    raise call_error(method, exc, about) from exc
            attempt += 1
            time.sleep(deadline.pause_before(attempt))

    def _call_once(
        self, method: str, request: bytes, find: Callable[[int], str], attempt: int, timeout: float
    ) -> bytes:
        with self._lock:
            self._check()
            address = find(attempt)
            try:
                return self._channel(address).unary(f"/proto.API/{method}", request, timeout=timeout)
            except (RpcError, TransportError) as exc:
                if fate_of(exc).is_uncertain:  # the connection may be dead without an error
                    self._channels.pop(address).close()
                raise

    def addresses(self) -> list[str]:
        """Return the known broker addresses: the given ones, and the ones that the cluster advertises."""
        return list(dict.fromkeys((*self._seeds, *self._named)))

    def _any(self, attempt: int) -> str:
        known = self.addresses()
        return known[(self._first + attempt) % len(known)]

    def _find(self, name: str, ask: Callable[[], _T | None]) -> _T:
        """Ask broker after broker about a stream, until one knows it.

        A broker that has just started does not know its streams until it has replayed its log. Later requests
        begin with the broker that knew the stream.

        Raises:
            NoSuchStreamError: No broker knows a stream of that name.
        """
        for round_ in range(max(_LATE_ROUNDS, len(self.addresses()))):
            if round_:
                self._first += 1
                time.sleep(_LATE_PAUSE)
            if (found := ask()) is not None:
                return found
        raise NoSuchStreamError(StatusCode.NOT_FOUND, f"there is no stream {name!r}")

    def metadata(self, stream: str, deadline: Deadline | None = None) -> Metadata:
        """Fetch the metadata of a stream from one broker."""
        found = self._decoded(self._ask_metadata(stream, deadline))
        self._named[:] = found.addresses
        self._kept[stream] = found, time.monotonic()
        return found

    def _recent(self, stream: str, deadline: Deadline | None = None) -> Metadata:
        found, at = self._kept.get(stream, (None, 0.0))
        if found is None or time.monotonic() - at > _MAX_AGE:
            return self.metadata(stream, deadline)
        return found

    def forget(self, stream: str) -> None:
        """Forget the metadata of a stream: a broker that was named in it has ended a call."""
        self._kept.pop(stream, None)

    def _ask_metadata(self, stream: str, deadline: Deadline | None = None) -> bytes:
        request = api_pb2.FetchMetadataRequest(streams=[stream]).SerializeToString()
        return self._call("FetchMetadata", request, self._any, f"stream {stream!r}", deadline)

    def _decoded(self, answer: bytes) -> Metadata:
        return decode_metadata(answer, self._access.max_brokers, self._access.max_partitions)

    def check_publish(self, stream: str, address: str) -> None:
        """Check the permission to publish to a stream: see client/publish_permission.py.

        Raises:
            PermissionDeniedError: The client may not publish to the stream. Nothing was published.
            TransportError, CallTimeoutError: No broker answered in time.
        """
        if not self._secure:
            return

        def find(attempt: int) -> str:
            return self._any(attempt) if attempt else address

        with suppress(NoSuchPartitionError, NoSuchStreamError):
            self._call("Publish", permission_request(stream), find, f"stream {stream!r}")

    def streams(self) -> list[str]:
        """Return the sorted names of all streams, except the servers' internal streams.

        Raises:
            TransportError, CallTimeoutError: No broker answered.
        """
        request = api_pb2.FetchMetadataRequest().SerializeToString()
        found = self._decoded(self._call("FetchMetadata", request, self._any, "all streams"))
        return sorted(name for name in found.streams if not name.startswith("__"))

    def stream(self, name: str, deadline: Deadline | None = None) -> StreamInfo:
        """Return the metadata of a stream.

        Raises:
            NoSuchStreamError: No broker knows a stream of that name.
            TransportError, CallTimeoutError: No broker answered.
        """
        return self._find(name, lambda: self.metadata(name, deadline).get_stream(name))

    def created(self, name: str, *, recent: bool = False) -> int:
        """Return the creation time of a stream in ns since 1970; 0 if the server does not report it.

        Args:
            name: Name of the stream.
            recent: Whether metadata of the last second will do. Then 0 also stands for no such stream.

        Raises:
            LiftEnvelopeError: As for :meth:`stream`.
        """
        if recent:
            found = self._recent(name).get_stream(name)
            return 0 if found is None else found.created_ns
        return self._find(name, lambda: creation_time(self._ask_metadata(name), name))

    def check_partition(self, stream: str, partition: int) -> None:
        """Check that a stream has a partition.

        Raises:
            NoSuchStreamError, NoSuchPartitionError: There is no such stream or partition.
            TransportError, CallTimeoutError: No broker answered.
        """
        info = self._recent(stream).get_stream(stream)
        if info is None or partition not in info.partitions:
            info = self.stream(stream)
        _check_partition(info, partition)

    def leader(self, stream: str, partition: int, timeout: float, *, refresh: bool = False) -> str:
        """Wait until a partition has a leader, and return the leader's address.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            timeout: Seconds to wait.
            refresh: Whether to ask the brokers in any case: the leader known last has refused a call, or
                can't be reached.

        Raises:
            NoSuchStreamError, NoSuchPartitionError: There is no such stream or partition.
            NotLeaderError: The partition had no leader for ``timeout`` seconds.
        """
        deadline, attempt = Deadline(timeout), 0
        if not refresh:
            address = _leader_in(self._recent(stream, deadline), stream, partition)
            if address is not None:
                return address
        while True:
            found = self.metadata(stream, deadline)
            info = found.get_stream(stream) or self.stream(stream, deadline)
            _check_partition(info, partition)
            if (address := _leader_in(found, stream, partition)) is not None:
                return address
            if deadline.is_over:
                text = f"{stream}[{partition}] has no leader"
                raise NotLeaderError(StatusCode.FAILED_PRECONDITION, text)
            attempt += 1
            time.sleep(deadline.pause_before(attempt))

    def reader(self, stream: str, partition: int, timeout: float, *, refresh: bool = False) -> str:
        """Return the address of a broker to read from.

        With ``read_isr_replica``, this is a random in-sync replica; otherwise, or without one, the leader.
        Arguments and errors are those of :meth:`leader`.
        """
        if self._access.read_isr_replica:
            found = self.metadata(stream) if refresh else self._recent(stream)
            info = found.get_stream(stream)
            names = info.partitions[partition].isr if info and partition in info.partitions else ()
            brokers = [found.brokers[name] for name in names if name in found.brokers]
            if brokers:
                return random.choice(brokers).address
        return self.leader(stream, partition, timeout, refresh=refresh)

    def partition(self, stream: str, partition: int) -> PartitionInfo:
        """Fetch the state of a partition from its leader.

        Raises:
            NoSuchStreamError, NoSuchPartitionError: There is no such stream or partition.
            LiftEnvelopeError: As for :meth:`leader`.
        """
        deadline, attempt = Deadline(self._access.timeout), 0
        while True:
            try:
                return self._ask_leader(stream, partition, deadline)
            except NoSuchPartitionError:
                # A leader that has just started has not read its log yet, which takes some seconds.
                if deadline.is_over:
                    raise
            # Ends the wait for a partition that was deleted: metadata names it no longer.
            self.leader(stream, partition, deadline.left, refresh=True)
            attempt += 1
            time.sleep(deadline.pause_before(attempt))

    def _ask_leader(self, stream: str, partition: int, deadline: Deadline) -> PartitionInfo:
        about = f"{stream}[{partition}]"
        request = api_pb2.FetchPartitionMetadataRequest(
            stream=stream, partition=partition
        ).SerializeToString()

        def find(attempt: int) -> str:
            return self.leader(stream, partition, deadline.left, refresh=attempt > 0)

        answer = self._call("FetchPartitionMetadata", request, find, about, deadline)
        return partition_info(decode(api_pb2.FetchPartitionMetadataResponse, answer, about).metadata)

    @contextmanager
    def subscription(self, request: api_pb2.SubscribeRequest, *, reconnect: bool) -> Iterator[ResponseStream]:
        """Subscribe at the partition's leader over the shared connection, which is locked meanwhile.

        Args:
            request: The request.
            reconnect: Whether to ask for the leader and to make a new connection first: the old one may be
                dead without an error.

        Raises:
            LiftEnvelopeError: As for :meth:`leader`, and TransportError if the broker can't be reached.
        """
        address = self.leader(request.stream, request.partition, self._access.timeout, refresh=reconnect)
        with self._lock:
            self._check()
            if reconnect and address in self._channels:
                self._channels.pop(address).close()
            channel = self._channel(address)
            with channel.server_stream("/proto.API/Subscribe", request.SerializeToString()) as call:
                yield call


def _check_partition(info: StreamInfo, partition: int) -> None:
    if partition not in info.partitions:
        text = f"stream {info.name!r} has no partition {partition}"
        raise NoSuchPartitionError(StatusCode.NOT_FOUND, text)


def _leader_in(metadata: Metadata, stream: str, partition: int) -> str | None:
    """Return the address of a partition's leader, or None if the metadata has none."""
    info = metadata.get_stream(stream)
    if info is None or partition not in info.partitions:
        return None
    broker = metadata.brokers.get(info.partitions[partition].leader)
    return None if broker is None else broker.address
