"""Connections to the servers of a JetStream stream for bulk reads and writes, and its API requests."""

from __future__ import annotations

import contextlib
import copy
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from liftenvelope._checks import as_text
from liftenvelope._deadlines import Deadline
from liftenvelope.bulk._engine.crew import Stopped
from liftenvelope.bulk._jetstream.connector import Connector
from liftenvelope.bulk._jetstream.stream_clock import StreamTimes
from liftenvelope.bulk.ranges import Extent
from liftenvelope.errors import (
    CallTimeoutError,
    JetStreamError,
    LiftEnvelopeError,
    ServerProtocolError,
    StreamNotFoundError,
    TransportError,
)
from liftenvelope.jetstream.api import api_prefix, natural, parse_ns
from liftenvelope.jetstream.errors import INACTIVE_TOO_LONG
from liftenvelope.jetstream.lagging import LeaderSearch, server_of
from liftenvelope.jetstream.names import check_stream_name

if TYPE_CHECKING:
    from liftenvelope.bulk._engine.crew import Outlet
    from liftenvelope.bulk._jetstream.nats_socket import NatsSocket
    from liftenvelope.bulk.access import Target

__all__ = [
    "JetStreamRequests",
    "consumer_request",
    "created_and_oldest",
    "new_name",
    "on_leader",
    "pending",
    "start_at",
    "times_of",
]

_T = TypeVar("_T")
_SECOND: Final = 1_000_000_000
#: Longest wait in seconds, on closing, for a consumer being created, and for the server to take all that was
#: sent.
_CLOSING: Final = 1.0
#: Attempts to count a range while messages come.
_COUNTS: Final = 20
#: Seconds without a pull after which the server deletes a consumer.
_INACTIVE: Final = 300


def new_name() -> str:
    """Return a unique consumer name."""
    return f"bulk-{secrets.token_hex(8)}"


def start_at(offset: int) -> dict[str, Any]:
    """Return the part of a consumer's config that makes it start at an offset."""
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": offset + 1}


def pending(info: dict[str, Any]) -> int:
    """Return the number of messages that a consumer has yet to deliver."""
    return natural(info["num_pending"])


def created_and_oldest(answer: dict[str, Any]) -> tuple[int, int]:
    """Return the creation time of a stream and the time of its oldest message, in ns since 1970; 0 for none.

    Args:
        answer: Answer to a request for the stream's info, whose state is an object.
    """
    return _moment("created", answer), _moment("first_ts", answer["state"])


def times_of(answer: dict[str, Any]) -> StreamTimes:
    """Return the times in a stream's info, whose state and config are objects."""
    newest = _moment("last_ts", answer["state"]) / _SECOND
    return StreamTimes(_moment("ts", answer) / _SECOND, newest, bool(answer["config"].get("mirror")))


def _moment(name: str, record: dict[str, Any]) -> int:
    return parse_ns(as_text(name, record[name])) if name in record else 0


def on_leader(
    stream: str,
    ask_leader: Callable[[], str],
    make: Callable[[], tuple[_T, str]],
    is_enough: Callable[[_T], bool] = lambda _: False,
) -> tuple[_T, bool]:
    """Make consumers until one is on the stream's leader: the blocking ``jetstream.counting.on_leader``.

    Args:
        stream: Name of the stream.
        ask_leader: Asks for the name of the stream's leader.
        make: Makes a consumer in place of the last one; returns what it told, and the name of its server.
        is_enough: Returns True if what a consumer told is enough, wherever it is. Default: never.

    Returns:
        What the last consumer told, and True if it is on the leader.

    Raises:
        TransportError: The server placed no consumer on the leader.
    """
    search = LeaderSearch(stream)
    while True:
        if search.needs_leader:
            search.leader = ask_leader()
        found, server = make()
        is_there = search.accepts(server)
        if is_there or is_enough(found):
            return found, is_there


def consumer_request(
    stream: str, start: dict[str, Any], filters: Sequence[str] = (), *, inactive: int = _INACTIVE
) -> dict[str, Any]:
    """Return the request for a consumer that only reads: without acks, in memory, with a single replica.

    Args:
        stream: Name of the stream.
        start: Part of the config that says where to start, as from :func:`start_at`.
        filters: Filters of the subjects to deliver. Default: all subjects.
        inactive: Seconds without a pull after which the server deletes the consumer.
    """
    wanted: dict[str, Any] = {"filter_subjects": list(filters)} if len(filters) > 1 else {}
    if len(filters) == 1:  # understood by all servers, and the faster way in some
        wanted = {"filter_subject": filters[0]}
    config = {
        "ack_policy": "none",
        "replay_policy": "instant",
        "inactive_threshold": inactive * _SECOND,
        "mem_storage": True,
        "num_replicas": 1,
        **wanted,
        **start,
    }
    return {"stream_name": stream, "config": config, "action": "create"}


class JetStreamRequests:
    """Connections and API requests for one JetStream stream. Any thread may call the methods.

    Args:
        target: Servers and connection options.
        stream: Name of the stream.

    Raises:
        UsageError: The name is not a valid stream name.
    """

    def __init__(self, target: Target, stream: str) -> None:
        self.stream = check_stream_name(stream)
        #: Filters that the server applies to reads through consumers; none to read all messages.
        self.filters: tuple[str, ...] = ()
        #: Most messages of a pull from the last consumer, by a limit of its server; 0 for none.
        self.max_batch = 0
        self.access = target.access
        self.prefix = api_prefix(target.access.domain, target.access.api_prefix)
        self._connector = Connector(target)
        # Connection for API requests; none before the first request, and after a failure.
        self._control: list[NatsSocket] = []
        self._lock = threading.Lock()
        self._outlet: Outlet | None = None

    def checked(self, outlet: Outlet) -> Self:
        """Return the same stream, over the same connections, whose requests end once a reader is stopped.

        Nothing is sent after that, but for deletions of consumers, and no answer is awaited, but for those
        about consumers that are being created.
        """
        found = copy.copy(self)
        found._outlet = outlet
        return found

    def _check(self) -> None:
        if self._outlet is not None:
            self._outlet.check()

    def close(self) -> None:
        """Close the connection for API requests, after the server has taken all that was sent.

        With ``Access.idle``, that keeps the connection.
        """
        with self._lock:
            for control in self._control:
                if self.access.idle is not None:
                    self.access.idle.put(control)
                    continue
                # Closing a socket with unread bytes, such as a PING, may lose the last bytes sent. Errors are
                # ignored, because no call waits for a result any more.
                with contextlib.suppress(LiftEnvelopeError):
                    control.flush(_CLOSING)
                control.close()
            self._control.clear()

    def connect(self) -> NatsSocket:
        """Connect to the next server that can be reached; see :meth:`Connector.connect`."""
        return self._connector.connect(self._check)

    def ask(
        self,
        read: Callable[[dict[str, Any]], _T],
        subject: str,
        payload: dict[str, Any] | None = None,
        grace: float = 0.0,
    ) -> _T:
        """Send an API request over the shared connection; return the answer as parsed by ``read``.

        If a connection from an earlier call fails, the request is sent once more over a new connection.

        Args:
            read: Parses the answer.
            subject: Subject of the request, without the prefix of the API.
            payload: The request. Default: none.
            grace: Seconds to wait for the answer after the reader was stopped.

        Raises:
            Stopped: The reader was stopped, see :meth:`checked`. The connection stays open.
            JetStreamError: The server refused the request.
            TransportError, CallTimeoutError: No server could be reached, or the server did not answer.
        """
        with self._lock:
            check = (
                self._check if self._outlet is None or not grace else _check_with_grace(self._outlet, grace)
            )
            for again in (True, False):
                self._check()  # waiting for the lock, or the first attempt, may have taken long
                if again and not self._control and (kept := self._connector.resume()) is not None:
                    self._control.append(kept)
                fresh = not self._control
                if fresh:
                    self._control.append(self.connect())
                try:
                    return self._control[0].ask(read, f"{self.prefix}.{subject}", payload, check)
                except StreamNotFoundError as exc:
                    raise self.no_stream(exc) from exc
                except (TransportError, CallTimeoutError):
                    self._control.pop().close()
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
                text = f"{self._connector.first_address} lists more than max_partitions={most} streams"
                raise ServerProtocolError(text)
            if not names or len(found) >= total:
                return sorted(set(found))

    def no_stream(self, error: StreamNotFoundError) -> StreamNotFoundError:
        """Return the server's "stream not found" error with the name of the stream added."""
        return StreamNotFoundError(error.code, f"there is no stream {self.stream!r}", error.err_code)

    def make_consumer(self, name: str, offset: int) -> tuple[int, str]:
        """Create a consumer that only reads; return the number of messages to deliver, and its server.

        The number is that of the server's own copy of the stream, which may lag behind.

        If the reader is stopped, it still waits a second for the answer: nats-server executes requests
        concurrently, also those of one connection, so a deletion sent now might overtake the creation. Both
        go over the shared connection.

        Raises:
            Stopped: The reader was stopped, and no answer came within a second.
            LiftEnvelopeError: As for :meth:`ask`.
        """
        request = consumer_request(self.stream, start_at(offset), self.filters)
        left, server, self.max_batch = self._create(_pending_server_and_batch, name, request)
        return left, server

    def _create(self, read: Callable[[dict[str, Any]], _T], name: str, request: dict[str, Any]) -> _T:
        """Create a consumer, and return the answer as parsed by ``read``.

        If its stream has a lower limit of inactivity, the request gets that one.
        """
        subject = f"CONSUMER.CREATE.{self.stream}.{name}"
        try:
            return self.ask(read, subject, request, _CLOSING)
        except JetStreamError as exc:
            if exc.err_code != INACTIVE_TOO_LONG:
                raise
        longest = self.ask(_longest_inactive_ns, f"STREAM.INFO.{self.stream}")
        request["config"]["inactive_threshold"] = longest
        return self.ask(read, subject, request, _CLOSING)

    def drop_consumer(self, name: str, link: NatsSocket | None = None) -> None:
        """Delete a consumer, without waiting for the answer.

        If the request is lost, the server deletes the consumer after its inactivity threshold.

        Args:
            name: Name of the consumer, which may not exist.
            link: Connection to use if the shared one is closed, as after a request without an answer; None to
                send nothing then.
        """
        subject = f"{self.prefix}.CONSUMER.DELETE.{self.stream}.{name}"
        with self._lock, contextlib.suppress(TransportError, CallTimeoutError):
            if self._control:
                self._control[0].publish(subject, b"")
            elif link is not None:
                link.publish(subject, b"")
                link.flush(_CLOSING)  # the caller closes it next

    def probe(
        self, read: Callable[[dict[str, Any]], int], start: dict[str, Any], filters: Sequence[str] = ()
    ) -> int:
        """Create a consumer on the leader at a start position, read a number from its info, and delete it.

        Args:
            read: Reads the number.
            start: Part of the config that says where to start.
            filters: Filters of the consumer's subjects. Default: all subjects.

        Raises:
            LiftEnvelopeError: As for :meth:`ask`.
        """

        def number_and_server(answer: dict[str, Any]) -> tuple[int, str]:
            return read(answer), server_of(answer)

        def make() -> tuple[int, str]:
            name = new_name()
            try:
                made = self._create(number_and_server, name, request)
                self.ask(_all, f"CONSUMER.DELETE.{self.stream}.{name}")
            except Stopped:
                self.drop_consumer(name)
                raise
            return made

        request = consumer_request(self.stream, start, filters, inactive=5)
        return on_leader(self.stream, lambda: self.ask(server_of, f"STREAM.INFO.{self.stream}"), make)[0]

    def count_between(
        self, read: Callable[[dict[str, Any]], int], start: int, stop: int, filters: Sequence[str]
    ) -> tuple[int, int]:
        """Return the least and the most messages between two offsets; the same if the number is certain.

        A server tells how many messages there are from an offset to the end. So those behind ``stop`` are
        counted before and after all: messages that come in between make the difference.

        Args:
            read: Reads the number from a consumer's info.
            start: First offset.
            stop: Offset after the last one.
            filters: Filters of the subjects to count; none for all.

        Raises:
            LiftEnvelopeError: As for :meth:`ask`.
        """
        least, most = 0, stop - start
        behind = self.probe(read, start_at(stop), filters)
        for _ in range(_COUNTS):
            whole = self.probe(read, start_at(start), filters)
            most = max(min(most, whole - behind), 0)
            behind = self.probe(read, start_at(stop), filters)
            least = min(max(least, whole - behind), most)  # the most is less if messages were removed
            if least == most:
                break
        return least, most

    def config_and_extent(self) -> tuple[dict[str, Any], Extent]:
        """Return the config and the current extent of the stream.

        Raises:
            LiftEnvelopeError: As for :meth:`ask`.
        """
        return self.ask(_config_and_extent, f"STREAM.INFO.{self.stream}")

    def extent(self, partition: int) -> Extent:  # noqa: ARG002 - there is only one
        """Return the current extent of the stream.

        Raises:
            LiftEnvelopeError: As for :meth:`ask`.
        """
        return self.config_and_extent()[1]

    def oldest_at(self) -> tuple[int, float, StreamTimes]:
        """Return the offset of the oldest message, when it was stored, and the other times of the stream.

        Times are in seconds since 1970, by the server's clock. The second is infinite if there is no message.

        Raises:
            LiftEnvelopeError: As for :meth:`ask`.
        """
        return self.ask(_oldest_at, f"STREAM.INFO.{self.stream}")

    def created(self) -> int:
        """Return the creation time of the stream in ns since 1970."""
        return self.ask(_created, f"STREAM.INFO.{self.stream}")

    def may_have_holes(self) -> bool:
        """Return True if the stream may remove single messages by itself, so that its start can jump."""
        return self.ask(_may_have_holes, f"STREAM.INFO.{self.stream}")


def _check_with_grace(outlet: Outlet, seconds: float) -> Callable[[], None]:
    """Return a function that raises Stopped once the outlet has been stopped for some seconds."""
    grace: Deadline | None = None

    def check() -> None:
        nonlocal grace
        if grace is None and outlet.is_stopping:
            grace = Deadline(seconds)
        if grace is not None and grace.is_over:
            outlet.check()

    return check


# Readers of answers. Their KeyError, TypeError and ValueError become ServerProtocolError in NatsSocket.ask().


def _all(answer: dict[str, Any]) -> dict[str, Any]:
    return answer


def _names(answer: dict[str, Any]) -> tuple[list[str], int]:
    return [as_text("name", name) for name in answer.get("streams") or ()], natural(answer["total"])


def _pending_server_and_batch(answer: dict[str, Any]) -> tuple[int, str, int]:
    return pending(answer), server_of(answer), natural(dict(answer["config"]).get("max_batch", 0))


def _longest_inactive_ns(answer: dict[str, Any]) -> int:
    return natural(answer["config"]["consumer_limits"]["inactive_threshold"])


def _config_and_extent(answer: dict[str, Any]) -> tuple[dict[str, Any], Extent]:
    state = answer["state"]
    first, end = natural(state["first_seq"]), natural(state["last_seq"])
    return dict(answer["config"]), Extent(min(max(first - 1, 0), end), end, _moment("created", answer))


def _oldest_at(answer: dict[str, Any]) -> tuple[int, float, StreamTimes]:
    _, stored_ns = created_and_oldest(answer)
    oldest = max(natural(answer["state"]["first_seq"]) - 1, 0)
    return oldest, stored_ns / _SECOND or math.inf, times_of(answer)


def _created(answer: dict[str, Any]) -> int:
    return parse_ns(as_text("created", answer["created"]))


def _may_have_holes(answer: dict[str, Any]) -> bool:
    config = answer["config"]
    return (
        int(config.get("max_msgs_per_subject", -1)) > 0
        or bool(config.get("allow_msg_ttl"))
        or bool(config.get("allow_rollup_hdrs"))
        or config.get("retention", "limits") != "limits"
    )
