"""A NATS connection that blocks, over a plain socket: for one thread.

What comes is left in one buffer, where a row reader finds it: see :meth:`NatsSocket.view`. Everything that is
not a message of the read is handled by :meth:`NatsSocket.handle`.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftenvelope import _native
from liftenvelope.bulk._nats_login import connect_line
from liftenvelope.bulk.errors import ServerProtocolError
from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoJetStreamError,
    PermissionDeniedError,
    StreamMessageTooLargeError,
    TransportError,
)
from liftenvelope.jetstream._statuses import Status, status_number
from liftenvelope.jetstream.api import encode_payload, natural, read_answer, read_as, read_json
from liftenvelope.rpc.address import Address, parse_address

if TYPE_CHECKING:
    from liftenvelope.bulk.access import Access, Target

__all__ = ["Frame", "NatsSocket", "claimed_size"]

_T = TypeVar("_T")
_BUFFER: Final = 1024 * 1024
#: With less room behind what has come, that is moved to the front.
_LEAST: Final = 65_536
#: The inbox of requests is the first subscription of every connection.
_REQUESTS: Final = 1
_DEFAULT_PAYLOAD: Final = 1024 * 1024
#: A message in an answer of the API is in base64, beside other fields.
_ANSWER_FIELDS: Final = 65_536
#: The fields of INFO that are read. Others are not kept: a server may send any number of them.
_INFO_FIELDS: Final = frozenset(
    {"connect_urls", "ldm", "max_payload", "nonce", "server_id", "tls_required", "version"}
)
_INFO_FLAGS: Final = ("ldm", "tls_required")
_INFO_TEXTS: Final = ("nonce", "server_id", "version")
#: The line of a message: its last number is the size.
_MESSAGE_LINE: Final = re.compile(rb"H?MSG [^\r\n]* (\d{1,18})\r\n")
#: How the first line of a NATS server begins.
_GREETING: Final = b"INFO "
_DENIED: Final = ("authorization violation", "permissions violation", "user authentication", "authentication")


def claimed_size(data: bytes | memoryview, start: int, end: int) -> int:
    """Size of the message that begins there, as its line claims; 0 where none begins."""
    found = _MESSAGE_LINE.match(data, start, end)
    return int(found[1]) if found is not None else 0


class Frame:
    """A message that is not one of the rows: the answer to a request, or a status of a pull."""

    def __init__(self, line: bytes, headers: bytes, payload: bytes) -> None:
        words = line.split()
        self.subject = words[1].decode("utf-8", "replace")
        self.sid = int(words[2])
        self.headers = headers
        self.payload = payload

    @property
    def number(self) -> int | None:
        """Number that the last word of the subject is; None if it is none."""
        return status_number(self.subject.rpartition(".")[2])

    @property
    def status(self) -> Status | None:
        """What its headers say beside being headers: a number and a text; None if they say nothing."""
        first, *lines = self.headers.decode("utf-8", "replace").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or status_number(words[1]) is None:
            return None
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        fields["Status"], fields["Description"] = words[1], words[2] if len(words) > 2 else ""
        return Status.from_headers(fields)


class NatsSocket:
    """One connection to one server.

    Args:
        address: The server.
        target: How to reach it.

    Attributes:
        start, end: What of the buffer has come and was not taken.
        max_payload: The longest message that the server takes.
        info: What the server said of itself last, as far as it is read here.
        is_secure: Whether TLS is spoken.
        leaving: Whether the server is about to stop, and wants its clients elsewhere ("lame duck").

    Raises:
        TransportError: No connection could be made, or the server refused it.
        PermissionDeniedError: The server does not know the user.
        ServerProtocolError: It is no NATS server.
    """

    def __init__(self, address: Address, target: Target) -> None:
        self.address = address
        self._access: Access = target.access
        self._buffer = bytearray(_BUFFER)
        self.view = memoryview(self._buffer)
        self.start = self.end = 0
        self.info: dict[str, Any] = {}
        self.is_secure = self.leaving = False
        self._greeted = False
        self._sid = _REQUESTS
        self._inbox = self._access.new_inbox()
        self._answers: dict[str, Frame] = {}
        self._awaited = ""
        self._requests = 0
        self._pongs = 0
        # Takes no message: it finds out what comes next. No server sends messages before the login.
        self._lines = _native.bulk.NatsRows((), 0, 1, 1, 0, bytearray)
        self.last_heard = time.monotonic()
        deadline = time.monotonic() + self._access.connect_timeout
        try:
            self._socket = socket.create_connection(address, timeout=self._access.connect_timeout)
        except OSError as exc:
            raise TransportError(f"can't connect to {address}: {exc}") from exc
        try:
            self._greet(target, deadline)
        except BaseException:
            self.close()
            raise

    @property
    def max_payload(self) -> int:
        """The longest message that the server takes."""
        return int(self.info.get("max_payload") or _DEFAULT_PAYLOAD)

    @property
    def other_addresses(self) -> list[str]:
        """Where the server says that its cluster can be reached, as ``host:port``."""
        return [str(url) for url in self.info.get("connect_urls") or ()]

    def _greet(self, target: Target, deadline: float) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        while not self._greeted:
            self._next_other(deadline, "its greeting")
        self.is_secure = target.secure or bool(self.info.get("tls_required"))
        if self.is_secure:
            self._wrap(deadline)
        self.send(connect_line(self._access, self.info, tls=self.is_secure), deadline)
        while not self._pongs:
            self._next_other(deadline, "an answer to CONNECT")
        self.send(b"SUB %b.* %d\r\n" % (self._inbox.encode(), _REQUESTS), deadline)
        largest = self._access.max_message_bytes * 4 // 3 + _ANSWER_FIELDS
        self._lines = _native.bulk.NatsRows((), 0, 1, 1, largest, bytearray)

    def _wrap(self, deadline: float) -> None:
        context = self._access.context or ssl.create_default_context()
        if self.start != self.end:
            raise ServerProtocolError(f"{self.address} sent more than its greeting before TLS")
        try:
            self._socket.settimeout(self._left(deadline, "its part of the TLS handshake"))
            self._socket = context.wrap_socket(self._socket, server_hostname=self.address.host)
        except OSError as exc:
            raise TransportError(f"{self.address}: TLS failed: {exc}") from exc

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self._socket.close()

    def wake(self) -> None:
        """End a wait of another thread: the connection is of no more use."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # Sending

    def send(self, data: bytes, deadline: float | None = None) -> None:
        """Send all of it.

        Args:
            data: The bytes.
            deadline: Until when, by ``time.monotonic()``. Default: for the ``stall_timeout`` of the access.

        Raises:
            TransportError: That is not possible, or not in time.
        """
        limit = self._access.stall_timeout
        try:
            self._socket.settimeout(
                limit if deadline is None else max(0.001, min(limit, deadline - time.monotonic()))
            )
            self._socket.sendall(data)
        except OSError as exc:
            raise TransportError(f"{self.address}: can't send: {exc}") from exc

    def subscribe(self, subject: str) -> int:
        """Subscribe; return the number of the subscription."""
        self._sid += 1
        self.send(b"SUB %b %d\r\n" % (subject.encode(), self._sid))
        return self._sid

    def unsubscribe(self, sid: int) -> None:
        """End a subscription. What is on its way still comes."""
        self.send(b"UNSUB %d\r\n" % sid)

    def publish(self, subject: str, payload: bytes, reply: str = "", deadline: float | None = None) -> None:
        """Publish a message. ``deadline`` is that of :meth:`send`."""
        words = " ".join(word for word in ("PUB", subject, reply, str(len(payload))) if word)
        self.send(words.encode() + b"\r\n" + payload + b"\r\n", deadline)

    # Receiving

    def fill(self, timeout: float) -> bool:
        """Wait for more bytes; return whether some have come.

        Args:
            timeout: Seconds to wait; 0 to look only.

        Raises:
            TransportError: The connection is lost.
        """
        self._make_room(1)
        try:
            self._socket.settimeout(timeout)
            size = self._socket.recv_into(self.view[self.end :])
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError as exc:
            raise TransportError(f"{self.address}: the connection was lost: {exc}") from exc
        except ValueError as exc:  # closed by another thread
            raise TransportError(f"{self.address}: the connection was closed") from exc
        if not size:
            raise TransportError(f"{self.address} closed the connection")
        self.end += size
        self.last_heard = time.monotonic()
        return True

    def want(self, size: int) -> None:
        """Have room for more of the ``size`` bytes that the next message has from :attr:`start` on.

        The size is what the server claims: the buffer doubles when it is nearly full, so that memory follows
        the bytes that came.
        """
        self._make_room(min(size - (self.end - self.start), _LEAST))

    def _make_room(self, more: int) -> None:
        """Have room behind what has come: by moving that to the front, or in a larger buffer."""
        least = max(more, _LEAST) if self.start else more
        if least <= len(self._buffer) - self.end and (self.start < self.end or not self.start):
            return
        held = self.end - self.start
        if held + more > len(self._buffer):
            larger = bytearray(2 * len(self._buffer))
            larger[:held] = self.view[self.start : self.end]
            self._buffer, self.view = larger, memoryview(larger)
        elif held:
            self.view[:held] = bytes(self.view[self.start : self.end])
        self.start, self.end = 0, held

    # What is not a row

    def handle(self, line: tuple[int, ...], deadline: float | None = None) -> Frame | None:
        """Take what comes next, which is not a row; return it if it is a message of some subscription.

        Args:
            line: What the row reader said of it.
            deadline: Until when a PING must be answered, as for :meth:`send`.

        Raises:
            TransportError: The server says that it ends the connection, or forbids something.
            PermissionDeniedError: The server does not allow what was tried.
        """
        body, end, sid, header_size = line
        text = bytes(self.view[self.start : body - 2])
        self.start = end
        if end > body:
            headers = bytes(self.view[body : body + header_size])
            frame = Frame(text, headers, bytes(self.view[body + header_size : end - 2]))
            if sid != _REQUESTS:
                return frame
            if frame.subject == self._awaited:
                self._answers[frame.subject] = frame
        elif text == b"PING":
            self.send(b"PONG\r\n", deadline)
        elif text == b"PONG":
            self._pongs += 1
        elif text.startswith(b"INFO "):
            self._learn(text[5:])
        elif text.startswith(b"-ERR"):
            self._refused(text[4:].strip().strip(b"'").decode("utf-8", "replace"))
        return None

    def _learn(self, text: bytes) -> None:
        what = f"{self.address}: INFO"
        self.info.update(read_as(self._info, read_json(text, what), what))
        self.leaving = self.leaving or bool(self.info.get("ldm"))
        self._greeted = True

    def _info(self, given: dict[str, Any]) -> dict[str, Any]:
        """The fields of INFO that are read, checked."""
        info = {name: value for name, value in given.items() if name in _INFO_FIELDS and value is not None}
        natural(info.get("max_payload", 0))
        expected = [(name, bool) for name in _INFO_FLAGS] + [(name, str) for name in _INFO_TEXTS]
        for name, kind in [*expected, ("connect_urls", list)]:
            if not isinstance(info.get(name, kind()), kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {info[name]!r:.40}")
        urls = info.get("connect_urls", [])
        if len(urls) > (most := self._access.max_brokers):
            raise ValueError(f"connect_urls must have at most max_brokers={most} entries, got {len(urls)}")
        for url in urls:
            parse_address(url)
        return info

    def _refused(self, text: str) -> None:
        for secret in (self._access.password, self._access.token):
            if secret:  # a server may repeat what it was sent
                text = text.replace(secret, "***")
        if any(word in text.lower() for word in _DENIED):
            hint = "; give the user, token or credentials that it knows" if "uthorization" in text else ""
            raise PermissionDeniedError(0, f"{self.address}: {text}{hint}")
        raise TransportError(f"{self.address}: {text}")

    def _next_other(self, deadline: float, what: str) -> Frame | None:
        """Wait for what comes next, and handle it."""
        while True:
            left = self._left(deadline, what)  # also where a server always has something else to say
            state, _ = self._lines.feed(self.view, self.start, self.end)
            if state == _native.bulk.LINE:
                return self.handle(self._lines.line, deadline)
            if state == _native.bulk.BROKEN:
                raise self.broken()
            self.want(self._lines.need or 1)
            self.fill(left)
            if not self._greeted:
                self._check_greeting()

    def _left(self, deadline: float, what: str) -> float:
        """Seconds until a deadline.

        Raises:
            CallTimeoutError: It has passed.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise CallTimeoutError(f"{self.address} did not send {what} in time")
        return left

    def _check_greeting(self) -> None:
        """Refuse the greeting of another protocol by its first bytes.

        The first frame of an HTTP/2 server is short and has no line end: a wait for a line would time out.

        Raises:
            ServerProtocolError: The first bytes are not those of INFO.
        """
        first = bytes(self.view[self.start : min(self.end, self.start + len(_GREETING))])
        if not _GREETING.startswith(first):
            hint = "; so a gRPC server greets, which has another port" if first.startswith(b"\0\0") else ""
            raise ServerProtocolError(self._broken() + hint)

    def next_frame(self) -> Frame | None:
        """Handle what has come, up to a message of a subscription; None if nothing whole is left.

        Raises:
            TransportError: As for :meth:`handle`.
        """
        while True:
            was_there, frame = self.handle_next()
            if frame is not None or not was_there:
                return frame

    def handle_next(self) -> tuple[bool, Frame | None]:
        """Handle what has come next, if it is all there.

        Returns:
            Whether it is; and if it is a message of a subscription, that.

        Raises:
            TransportError: As for :meth:`handle`.
        """
        state, _ = self._lines.feed(self.view, self.start, self.end)
        if state == _native.bulk.BROKEN:
            raise self.broken()
        if state != _native.bulk.LINE:
            self.want(self._lines.need or 1)
            return False, None
        return True, self.handle(self._lines.line)

    def _broken(self) -> str:
        shown = bytes(self.view[self.start : min(self.start + 40, self.end)])
        return f"{self.address} sent what is not the NATS protocol: {shown!r}"

    def broken(self) -> LiftEnvelopeError:
        """The error for what comes next, which no server sends, or is larger than the access allows."""
        size, limit = claimed_size(self.view, self.start, self.end), self._access.max_message_bytes
        if self._pongs and size > limit:
            text = f"{self.address} sent a message of {size} bytes; max_message_bytes is {limit}"
            return StreamMessageTooLargeError(0, text)
        return ServerProtocolError(self._broken())

    # Requests

    def request(self, subject: str, payload: Mapping[str, Any] | bytes | None = None) -> Frame:
        """Ask, and return the answer. What comes of other subscriptions meanwhile is dropped.

        Raises:
            NoJetStreamError: Nobody listens there.
            CallTimeoutError: No answer came in time.
            TransportError: The connection is lost.
        """
        self._requests += 1
        self._awaited = f"{self._inbox}.{self._requests}"
        deadline = time.monotonic() + self._access.timeout
        self.publish(subject, encode_payload(payload), self._awaited, deadline)
        while self._awaited not in self._answers:
            self._next_other(deadline, f"an answer on {subject!r}")
        answer = self._answers.pop(self._awaited)
        status = answer.status
        if status is not None and status.code == 503:
            hint = "has the server JetStream, and are domain and API prefix right?"
            raise NoJetStreamError(503, f"nothing answers on {subject!r}: {hint}")
        return answer

    def ask(
        self,
        read: Callable[[dict[str, Any]], _T],
        subject: str,
        payload: Mapping[str, Any] | None = None,
    ) -> _T:
        """Ask JetStream's API; return what ``read`` makes of the answer's JSON.

        Raises:
            JetStreamError: The server refused.
            ServerProtocolError: The answer lacks a field, or has one of another type.
            NoJetStreamError, CallTimeoutError, TransportError: As for :meth:`request`.
        """
        answer = read_answer(self.request(subject, payload).payload, subject)
        return read_as(read, answer, f"the answer on {subject!r}")
