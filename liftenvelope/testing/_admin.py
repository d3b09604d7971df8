"""Sets up Liftbridge streams for tests, in a few blocking calls. Applications use the client instead."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from liftenvelope._checks import check_settings, check_stream_name
from liftenvelope._pb import api_pb2
from liftenvelope.errors import TransportError, UsageError
from liftenvelope.rpc.address import parse_address
from liftenvelope.rpc.blocking import BlockingChannel, ResponseStream
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

__all__ = ["LiftbridgeAdmin"]

_T = TypeVar("_T")

#: Seconds to wait for one broker before asking the next.
_ATTEMPT_TIMEOUT: Final = 5.0
_RETRY_INTERVAL: Final = 0.05
#: Least seconds for connecting, even close to the deadline: a refusal must not look like a lost server.
_CONNECT_TIMEOUT: Final = 1.0

# Codes that another broker, or the same broker a moment later, may not return. A server that knows no leader
# yet returns INTERNAL.
_TRY_ELSEWHERE: Final = (
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.INTERNAL,
    StatusCode.NOT_FOUND,
    StatusCode.UNAVAILABLE,
)

# Optional settings of a stream: argument, field and wrapper.
_SETTINGS: Final[dict[str, tuple[str, Callable[..., Message]]]] = {
    "retention_max_bytes": ("retentionMaxBytes", api_pb2.NullableInt64),
    "retention_max_messages": ("retentionMaxMessages", api_pb2.NullableInt64),
    "retention_max_age": ("retentionMaxAge", api_pb2.NullableInt64),
    "cleaner_interval": ("cleanerInterval", api_pb2.NullableInt64),
    "segment_max_bytes": ("segmentMaxBytes", api_pb2.NullableInt64),
    "segment_max_age": ("segmentMaxAge", api_pb2.NullableInt64),
    "compact_max_goroutines": ("compactMaxGoroutines", api_pb2.NullableInt32),
    "compact_enabled": ("compactEnabled", api_pb2.NullableBool),
    "auto_pause_time": ("autoPauseTime", api_pb2.NullableInt64),
    "auto_pause_disable_if_subscribers": ("autoPauseDisableIfSubscribers", api_pb2.NullableBool),
    "min_isr": ("minIsr", api_pb2.NullableInt32),
    "encryption": ("encryption", api_pb2.NullableBool),
}


class LiftbridgeAdmin:
    """Creates, changes and reads streams of a Liftbridge cluster. Blocking; opens a connection for each call.

    Each call tries the brokers in turn until one can serve it or the timeout passes. A refusal by the server
    is raised as :class:`~liftenvelope.rpc.status.RpcError`.

    Args:
        addresses: ``host:port`` of every broker; others are not discovered.
        tls: TLS context for the connections; None for plain TCP.

    Raises:
        UsageError: An address is malformed, or ``addresses`` is empty.
    """

    def __init__(self, addresses: Sequence[str], tls: ssl.SSLContext | None = None) -> None:
        if not addresses:
            raise UsageError("addresses must name at least one broker, got none")
        self._addresses = [str(parse_address(address)) for address in addresses]
        self._tls = tls

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of each broker."""
        return list(self._addresses)

    def create_stream(
        self,
        name: str,
        *,
        subject: str | None = None,
        group: str = "",
        partitions: int = 1,
        replication_factor: int = 1,
        optimistic_concurrency: bool = False,
        timeout: float = 60.0,
        **settings: int | bool,
    ) -> None:
        """Create a stream; return when the leader of every partition is ready to record messages.

        Args:
            name: Name of the stream. Names that would crash the server are refused.
            subject: NATS subject to record; default: the name of the stream. Keyword only, because the
                client's method of this name takes the subject first.
            group: NATS queue group of the partitions.
            partitions: Number of partitions.
            replication_factor: Number of replicas of each partition; -1 for one on every broker.
            optimistic_concurrency: Refuse messages whose expected offset is not the next one.
            timeout: Seconds for the whole call.
            settings: The other settings of the API, in its units (times in milliseconds):
                ``retention_max_bytes``, ``retention_max_messages``, ``retention_max_age``,
                ``cleaner_interval``, ``segment_max_bytes``, ``segment_max_age``, ``compact_enabled``,
                ``compact_max_goroutines``, ``auto_pause_time``, ``auto_pause_disable_if_subscribers``,
                ``min_isr``, ``encryption``. The server's configuration applies to settings that are left out.

        Raises:
            UsageError: An argument is malformed, or would break the server.
            RpcError: The server refused the call, with ALREADY_EXISTS if the stream exists.
            TransportError: No broker could be reached in time.
        """
        request = _create_request(name, subject, settings)
        request.group = group
        request.partitions = _positive("partitions", partitions)
        request.replicationFactor = replication_factor
        if replication_factor != -1:
            _positive("replication_factor", replication_factor)
        if optimistic_concurrency:
            request.optimisticConcurrencyControl.value = True
        deadline = time.monotonic() + timeout
        self._change("CreateStream", request, deadline, done=StatusCode.ALREADY_EXISTS)
        for partition in range(partitions):
            self._partition_metadata(name, partition, deadline)

    def delete_stream(self, name: str, *, timeout: float = 60.0) -> None:
        """Delete a stream. Raises RpcError with NOT_FOUND if the stream does not exist."""
        check_stream_name(name)
        request = api_pb2.DeleteStreamRequest(name=name)
        self._change("DeleteStream", request, time.monotonic() + timeout, done=StatusCode.NOT_FOUND)

    def pause_stream(self, name: str, *, timeout: float = 60.0) -> None:
        """Pause every partition of a stream: nothing is recorded until a publish over gRPC resumes it."""
        check_stream_name(name)
        request = api_pb2.PauseStreamRequest(name=name)
        self._call_any("PauseStream", request.SerializeToString(), time.monotonic() + timeout)

    def set_stream_readonly(self, name: str, readonly: bool = True, *, timeout: float = 60.0) -> None:
        """Make every partition of a stream refuse messages, or accept them again."""
        check_stream_name(name)
        request = api_pb2.SetStreamReadonlyRequest(name=name, readonly=readonly)
        self._call_any("SetStreamReadonly", request.SerializeToString(), time.monotonic() + timeout)

    def partition_metadata(
        self, name: str, partition: int = 0, *, timeout: float = 60.0
    ) -> api_pb2.PartitionMetadata:
        """Return a partition's metadata from its leader.

        A paused partition has no leader. The call then fails with FAILED_PRECONDITION after ``timeout``
        seconds.
        """
        return self._partition_metadata(name, partition, time.monotonic() + timeout)

    def read(
        self, name: str, *, partition: int = 0, start: int = 0, count: int, timeout: float = 60.0
    ) -> list[api_pb2.Message]:
        """Return ``count`` messages of a partition, from the offset ``start`` on.

        Raises:
            RpcError: DEADLINE_EXCEEDED if fewer messages came in time, with their number; otherwise the
                reason why the server ended the subscription.
        """
        if count < 0 or start < 0:
            raise UsageError(f"start and count must be at least 0, got start={start!r}, count={count!r}")
        request = api_pb2.SubscribeRequest(
            stream=name, partition=partition, startPosition=api_pb2.OFFSET, startOffset=start
        )
        deadline = time.monotonic() + timeout

        def attempt(channel: BlockingChannel, _timeout: float) -> list[api_pb2.Message]:
            return _read_messages(channel, request, count, deadline)

        return self._ask(attempt, deadline)

    def _partition_metadata(self, name: str, partition: int, deadline: float) -> api_pb2.PartitionMetadata:
        request = api_pb2.FetchPartitionMetadataRequest(stream=name, partition=partition)
        answer = self._call_any("FetchPartitionMetadata", request.SerializeToString(), deadline)
        return api_pb2.FetchPartitionMetadataResponse.FromString(answer).metadata

    def _change(self, method: str, request: Message, deadline: float, *, done: StatusCode) -> None:
        """Make a change that only succeeds once; ``done`` is the code of a repeated change."""
        uncertain = False

        def attempt(channel: BlockingChannel, timeout: float) -> None:
            nonlocal uncertain
            try:
                channel.unary(f"/proto.API/{method}", request.SerializeToString(), timeout=timeout)
            except (RpcError, TransportError) as exc:
                if not isinstance(exc, RpcError) or exc.code != done:
                    # An attempt that failed may still have made the change.
                    uncertain = True
                elif uncertain:
                    return
                raise

        self._ask(attempt, deadline)

    def _call_any(self, method: str, request: bytes, deadline: float) -> bytes:
        def attempt(channel: BlockingChannel, timeout: float) -> bytes:
            return channel.unary(f"/proto.API/{method}", request, timeout=timeout)

        return self._ask(attempt, deadline)

    def _ask(self, attempt: Callable[[BlockingChannel, float], _T], deadline: float) -> _T:
        """Try each broker in turn until the attempt succeeds, is refused, or the deadline passes."""
        told: RpcError | None = None
        while True:
            errors: list[RpcError | TransportError] = []
            for address in self.addresses:
                timeout = max(0.001, min(_ATTEMPT_TIMEOUT, deadline - time.monotonic()))
                try:
                    patience = max(timeout, _CONNECT_TIMEOUT)
                    with BlockingChannel(address, connect_timeout=patience, tls=self._tls) as channel:
                        channel.connect()
                        return attempt(channel, timeout)
                except (RpcError, TransportError) as exc:
                    errors.append(exc)
                    refused = isinstance(exc, RpcError) and exc.code not in _TRY_ELSEWHERE
                    if refused or time.monotonic() + _RETRY_INTERVAL > deadline:
                        if told is not None and _is_cut_short(exc):
                            raise told from exc
                        raise
                    if isinstance(exc, RpcError) and not _is_cut_short(exc):
                        told = exc
            if _is_final(errors):
                raise errors[-1]
            time.sleep(_RETRY_INTERVAL)


class _IncompleteError(RpcError):
    """A read got only some of its messages in time."""


def _is_cut_short(error: RpcError | TransportError) -> bool:
    """Return True if an attempt ran out of time, so that the error before it says more."""
    late = isinstance(error, RpcError) and error.code == StatusCode.DEADLINE_EXCEEDED
    return late and not isinstance(error, _IncompleteError)


def _is_final(errors: list[RpcError | TransportError]) -> bool:
    """Return True if every broker returned NOT_FOUND. A single one may not know a new stream yet."""
    return all(isinstance(error, RpcError) and error.code == StatusCode.NOT_FOUND for error in errors)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise UsageError(f"{name} must be at least 1, got {value!r}")
    return value


def _create_request(
    name: str, subject: str | None, settings: dict[str, int | bool]
) -> api_pb2.CreateStreamRequest:
    check_stream_name(name)
    unknown = sorted(settings.keys() - _SETTINGS.keys())
    if unknown:
        raise UsageError(f"settings must be some of {', '.join(_SETTINGS)}, got {', '.join(unknown)}")
    request = api_pb2.CreateStreamRequest(name=name, subject=name if subject is None else subject)
    check_settings({_SETTINGS[setting][0]: value for setting, value in settings.items()})
    for setting, value in settings.items():
        field, wrapper = _SETTINGS[setting]
        getattr(request, field).CopyFrom(wrapper(value=value))
    return request


def _read_messages(
    channel: BlockingChannel, request: api_pb2.SubscribeRequest, count: int, deadline: float
) -> list[api_pb2.Message]:
    # No deadline on the call: at a deadline a server can end it with status OK, as if all had been read.
    with channel.server_stream("/proto.API/Subscribe", request.SerializeToString()) as stream:
        messages: list[api_pb2.Message] = []
        _receive(stream, deadline)  # the first, empty message confirms the subscription
        while len(messages) < count:
            try:
                message = api_pb2.Message.FromString(_receive(stream, deadline))
            except RpcError as exc:
                text = f"after {len(messages)} of {count} messages: {exc.description}"
                raise _IncompleteError(exc.code, text) from exc
            # A subscription that starts beyond the newest message gets the next message, whatever its offset.
            if message.offset >= request.startOffset:
                messages.append(message)
    return messages


def _receive(stream: ResponseStream, deadline: float) -> bytes:
    data = stream.receive(timeout=max(0.001, deadline - time.monotonic()))
    if data is None:
        raise RpcError(StatusCode.UNAVAILABLE, "the server ended the subscription without a reason")
    return data
