"""JetStream stream for bulk reads: API requests for offsets and counts, and range reads into batches.

Each range is read through its own consumer, which lives in the server's memory. The consumer starts at the
exact sequence, needs no acks, and numbers its deliveries, so a missing message is detected. After any failure
a new consumer starts at the next offset.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftenvelope._checks import as_text
from liftenvelope.bulk._jetstream_direct import DirectRead, next_stored
from liftenvelope.bulk._jetstream_read import RangeRead, consumer_request, new_name, pending, start_at
from liftenvelope.bulk._nats_socket import NatsSocket
from liftenvelope.bulk.ranges import Extent
from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoSuchPartitionError,
    ServerProtocolError,
    StreamNotFoundError,
    TransportError,
    UsageError,
)
from liftenvelope.jetstream._names import check_stream_name
from liftenvelope.jetstream.api import api_prefix, natural
from liftenvelope.rpc.address import Address, parse_address

if TYPE_CHECKING:
    from liftenvelope.bulk._crew import Outlet
    from liftenvelope.bulk.access import Target
    from liftenvelope.bulk.plan import BatchPlan
    from liftenvelope.bulk.ranges import Range

__all__ = ["JetStreamSource"]

_T = TypeVar("_T")
_SECOND: Final = 1_000_000_000
#: Longest wait in seconds, on closing, until the server has taken all that was sent.
_CLOSING: Final = 1.0


class JetStreamSource:
    """A JetStream stream. It has one partition, number 0; the offset is the sequence less 1.

    Args:
        target: Servers and connection options.
        stream: Name of the stream.

    Raises:
        UsageError: The name is not a valid stream name.
    """

    unsigned = True

    def __init__(self, target: Target, stream: str) -> None:
        self.stream = check_stream_name(stream)
        self.access = target.access
        self.prefix = api_prefix(target.access.domain, target.access.api_prefix)
        self._target = target
        self._addresses = list(target.addresses)
        self._turns = itertools.count()
        self._control: NatsSocket | None = None
        self._lock = threading.Lock()
        self._via = "consumer"
        # None until extent() has read the stream's config, if the choice depends on the config.
        self._reader: type[RangeRead] | None = RangeRead

    def choose(self, via: str) -> None:
        """Choose between consumers and direct requests. :meth:`extent` checks what the stream allows.

        Args:
            via: "consumer", "direct", or "auto": direct for a work-queue stream that allows direct requests,
                since such a stream accepts no consumer that only reads.
        """
        self._via = via
        self._reader = RangeRead if via == "consumer" else None

    def _reader_for(self, config: dict[str, Any]) -> type[RangeRead]:
        allowed = bool(config.get("allow_direct"))
        if self._via == "direct" and not allowed:
            raise UsageError(f"via='direct': {self.stream} needs allow_direct=True in its config")
        wanted = self._via == "direct" or config.get("retention") == "workqueue"
        return DirectRead if allowed and wanted else RangeRead

    def close(self) -> None:
        """Close the connection for API requests, after the server has taken all that was sent."""
        with self._lock:
            if self._control is not None:
                # A socket that is closed with unread bytes, such as a PING, may lose the last bytes sent.
                # No result depends on it any more, so its errors concern nobody.
                with contextlib.suppress(LiftEnvelopeError):
                    self._control.flush(_CLOSING)
                self._control.close()
            self._control = None

    def connect(self) -> NatsSocket:
        """Connect to the next server that can be reached.

        Once a server has used TLS, every later connection must use TLS as well, so that credentials sent over
        TLS are never sent over plain TCP.

        Raises:
            TransportError: No server could be reached, or none within ``reconnect_wait`` seconds.
        """
        error: TransportError | CallTimeoutError | None = None
        deadline = time.monotonic() + self.access.reconnect_wait
        for _ in range(len(self._addresses)):
            address = self._addresses[next(self._turns) % len(self._addresses)]
            try:
                found = NatsSocket(address, self._target)
            except (TransportError, CallTimeoutError) as exc:
                error = exc
                if time.monotonic() >= deadline:  # servers may advertise many addresses that don't answer
                    break
            else:
                self._learn(found.other_addresses)
                if found.is_secure:
                    self._target = replace(self._target, secure=True)
                return found
        assert error is not None
        raise TransportError(str(error)) from error

    def _learn(self, addresses: list[str]) -> None:
        known = {*self._addresses}
        found: list[Address] = [parse_address(address) for address in addresses]
        fresh = [address for address in dict.fromkeys(found) if address not in known]
        self._addresses += fresh[: max(self.access.max_brokers - len(known), 0)]

    def ask(
        self, read: Callable[[dict[str, Any]], _T], subject: str, payload: dict[str, Any] | None = None
    ) -> _T:
        """Send an API request over the shared connection; return the answer as parsed by ``read``.

        If a connection from an earlier call fails, the request is sent once more over a new connection.

        Raises:
            JetStreamError: The server refused the request.
            TransportError, CallTimeoutError: No server could be reached, or the server did not answer.
        """
        with self._lock:
            for again in (True, False):
                fresh = self._control is None
                if self._control is None:
                    self._control = self.connect()
                try:
                    return self._control.ask(read, f"{self.prefix}.{subject}", payload)
                except StreamNotFoundError as exc:
                    raise self.no_stream(exc) from exc
                except (TransportError, CallTimeoutError):
                    self._control.close()
                    self._control = None
                    if fresh or not again:
                        raise
        raise AssertionError

    def streams(self) -> list[str]:
        """Return the sorted names of all streams.

        Raises:
            ServerProtocolError: The server lists more than ``max_partitions`` streams.
            LiftEnvelopeError: As for :meth:`ask`.
        """
        found: list[str] = []
        while True:
            names, total = self.ask(_names, "STREAM.NAMES", {"offset": len(found)})
            found += names
            if len(found) > (most := self.access.max_partitions):
                text = f"{self._addresses[0]} lists more than max_partitions={most} streams"
                raise ServerProtocolError(text)
            if not names or len(found) >= total:
                return sorted(set(found))

    def no_stream(self, error: StreamNotFoundError) -> StreamNotFoundError:
        """Return the server's "stream not found" error with the name of the stream added."""
        return StreamNotFoundError(error.code, f"there is no stream {self.stream!r}", error.err_code)

    def make_consumer(self, name: str, offset: int) -> int:
        """Create a consumer that only reads; return the number of messages from the offset on.

        The request and that of :meth:`drop_consumer` go over the shared connection, so that the server gets
        them in this order, also if the read is stopped before the answer. Two connections have no order.

        Raises:
            LiftEnvelopeError: As for :meth:`ask`.
        """
        request = consumer_request(self.stream, start_at(offset))
        return self.ask(pending, f"CONSUMER.CREATE.{self.stream}.{name}", request)

    def drop_consumer(self, name: str) -> None:
        """Delete a consumer, without waiting for the answer.

        If the request is lost, the server deletes the consumer after its inactivity threshold.
        """
        with self._lock, contextlib.suppress(TransportError):
            if self._control is not None:
                self._control.publish(f"{self.prefix}.CONSUMER.DELETE.{self.stream}.{name}", b"")

    # Offsets

    def partitions(self) -> list[int]:
        """Return the numbers of the partitions: only 0. Raises StreamNotFoundError if there is no stream."""
        self.ask(_all, f"STREAM.INFO.{self.stream}")
        return [0]

    def check_partition(self, partition: int) -> None:
        """Raise NoSuchPartitionError unless the number is 0."""
        if partition:
            raise NoSuchPartitionError(0, f"{self.stream}[{partition}]: a JetStream stream has partition 0")

    def extent(self, partition: int) -> Extent:  # noqa: ARG002 - there is only one
        """Return the current extent of the stream.

        Raises:
            UsageError: ``via="direct"`` was chosen, and the stream does not allow direct requests.
            JetStreamError, TransportError, CallTimeoutError: As for :meth:`ask`.
        """
        config, first, end = self.ask(_config_and_ends, f"STREAM.INFO.{self.stream}")
        if self._reader is None:
            self._reader = self._reader_for(config)
        return Extent(min(max(first - 1, 0), end), end)

    def newest(self, partition: int) -> int:
        """Return the offset of the newest message ever stored, even if it is gone; -1 for none."""
        return self.extent(partition).end - 1

    def at_time(self, partition: int, time_ns: int, extent: Extent) -> int:  # noqa: ARG002
        """Return the offset of the first message that is not older than a time."""
        whole, part = divmod(time_ns, _SECOND)
        moment = f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{part:09}Z"
        if self._reader is DirectRead:
            found = next_stored(self, {"start_time": moment})
            return extent.end if found is None else min(found, extent.end)
        start = {"deliver_policy": "by_start_time", "opt_start_time": moment}
        return min(self._probe(lambda info: natural(info["delivered"]["stream_seq"]), start), extent.end)

    def count(self, span: Range) -> int | None:
        """Return the number of messages in a range; None for direct reads, where only reading can tell."""
        if self._reader is DirectRead:
            return None
        return self._pending(span.start) - self._pending(span.stop)

    def _pending(self, offset: int) -> int:
        return self._probe(pending, start_at(offset))

    def _probe(self, read: Callable[[dict[str, Any]], int], start: dict[str, Any]) -> int:
        """Create a consumer at a start position, read a number from its info, and delete the consumer."""
        name = new_name()
        request = consumer_request(self.stream, start, inactive=5)
        found = self.ask(read, f"CONSUMER.CREATE.{self.stream}.{name}", request)
        self.ask(_all, f"CONSUMER.DELETE.{self.stream}.{name}")
        return found

    def may_have_holes(self) -> bool:
        """Return True if the stream may remove single messages by itself, so that its start can jump."""
        return self.ask(_may_have_holes, f"STREAM.INFO.{self.stream}")

    def read(self, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        """Read a range into an outlet. Blocks, so each range runs in a thread of its own."""
        assert self._reader is not None  # the caller got the span from extent(), which sets the reader
        self._reader(self, span, plan, outlet).run()


# Readers of answers. Their KeyError, TypeError and ValueError become ServerProtocolError in NatsSocket.ask().


def _all(answer: dict[str, Any]) -> dict[str, Any]:
    return answer


def _names(answer: dict[str, Any]) -> tuple[list[str], int]:
    return [as_text("name", name) for name in answer.get("streams") or ()], natural(answer["total"])


def _config_and_ends(answer: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    state = answer["state"]
    return dict(answer["config"]), natural(state["first_seq"]), natural(state["last_seq"])


def _may_have_holes(answer: dict[str, Any]) -> bool:
    config = answer["config"]
    return (
        int(config.get("max_msgs_per_subject", -1)) > 0
        or bool(config.get("allow_msg_ttl"))
        or bool(config.get("allow_rollup_hdrs"))
        or config.get("retention", "limits") != "limits"
    )
