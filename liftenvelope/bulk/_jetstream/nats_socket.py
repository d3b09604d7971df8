"""Blocking NATS connection over a plain socket, for use by one thread.

Received bytes stay in one buffer, ``view[start:end]``, where a row reader parses them in place. All frames
other than rows go through :meth:`NatsSocket.handle`. The code that consumes bytes advances ``start``. Since
:meth:`NatsSocket.fill` and :meth:`NatsSocket.want` may move the remaining bytes or replace the buffer, read
``view``, ``start`` and ``end`` again after a call of these methods.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftenvelope import _native
from liftenvelope.bulk._jetstream.frame import Frame, claimed_size
from liftenvelope.bulk._jetstream.nats_login import connect_line
from liftenvelope.bulk.errors import ServerProtocolError
from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoJetStreamError,
    PermissionDeniedError,
    StreamMessageTooLargeError,
    TransportError,
)
from liftenvelope.jetstream.api import encode_payload, natural, read_answer, read_as, read_json
from liftenvelope.nats.logins import is_refused_login, refused_login
from liftenvelope.nats.reports import violation_in
from liftenvelope.rpc.address import LONGEST_WAIT, Address, connect, parse_address

if TYPE_CHECKING:
    from liftenvelope.bulk.access import Access, Target

__all__ = ["NatsSocket"]

_T = TypeVar("_T")
_BUFFER: Final = 1024 * 1024
#: Minimum room in bytes behind the received bytes; with less, these are moved to the front.
_LEAST: Final = 65_536
#: Subscription number of the request inbox, the first subscription of every connection.
_REQUESTS: Final = 1
#: Seconds between two checks whether the caller still waits for an answer.
_LOOK: Final = 0.5
_DEFAULT_PAYLOAD: Final = 1024 * 1024
#: Bytes to allow for the other fields of an API answer that contains a message in base64.
_ANSWER_FIELDS: Final = 65_536
#: Fields of INFO that are kept. Others are dropped, since a server may send any number of them.
_INFO_FIELDS: Final = frozenset(
    {"connect_urls", "ldm", "max_payload", "nonce", "server_id", "tls_required", "version"}
)
_INFO_FLAGS: Final = ("ldm", "tls_required")
_INFO_TEXTS: Final = ("nonce", "server_id", "version")
#: First bytes that a NATS server sends.
_GREETING: Final = b"INFO "
_DENIED: Final = "permissions violation"


class NatsSocket:
    """One connection to one server.

    Args:
        address: Address of the server.
        target: Connection options.
        server_name: Name that its certificate must have; None for the host of the address.
        check: Called at least every 0.5 s while the server's greeting is awaited; an error that it raises
            ends the attempt.

    Attributes:
        address, server_name: As given.
        view: Buffer of received bytes.
        start, end: Range of ``view`` with bytes received and not yet consumed.
        max_payload: Longest message in bytes that the server accepts.
        info: Fields of the server's INFO that are used here; later INFO lines update them.
        is_secure: True if the connection uses TLS.
        leaving: True if the server is about to stop and asks its clients to leave ("lame duck").
        last_heard: Time of the last received bytes, by ``time.monotonic()``.
        denied: Number of publishes that the server has denied. Each is an error of :meth:`handle`.
        denied_subject: Subject of the last one of them.

    Raises:
        TransportError: The connection failed, or the server refused it.
        PermissionDeniedError: The server rejected the login.
        ServerProtocolError: The server does not speak the NATS protocol.
    """

    def __init__(
        self,
        address: Address,
        target: Target,
        server_name: str | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.server_name = server_name or address.host
        self._access: Access = target.access_to(address)
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
        self.denied, self.denied_subject = 0, ""
        # Finds the next protocol line, and delivers no rows. Its message limit is 0 until the login, before
        # which no server sends messages.
        self._lines = _native.bulk.NatsRows((), 0, 1, 1, 0, bytearray)
        self.last_heard = time.monotonic()
        deadline = time.monotonic() + self._access.connect_timeout
        try:
            self._socket = connect(address, self._access.connect_timeout)
        except OSError as exc:
            raise TransportError(f"can't connect to {address}: {exc}") from exc
        try:
            self._greet(target, deadline, check)
        except BaseException:
            self.close()
            raise

    @property
    def max_payload(self) -> int:
        """Longest message in bytes that the server accepts."""
        return int(self.info.get("max_payload") or _DEFAULT_PAYLOAD)

    @property
    def other_addresses(self) -> list[str]:
        """Addresses of the cluster that the server advertises, as ``host:port``."""
        return [str(url) for url in self.info.get("connect_urls") or ()]

    def _greet(self, target: Target, deadline: float, check: Callable[[], None] | None) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        first = self._access.tls_first
        if first:
            self._wrap(deadline)
        while not self._greeted:
            self._next_other(deadline, "its greeting", check)
        self.is_secure = first or target.secure or bool(self.info.get("tls_required"))
        if self.is_secure and not first:
            self._wrap(deadline)
        self.send(connect_line(self._access, self.info, tls=self.is_secure), deadline)
        while not self._pongs:
            self._next_other(deadline, "an answer to CONNECT", check)
        self.send(b"SUB %b.* %d\r\n" % (self._inbox.encode(), _REQUESTS), deadline)
        largest = self._access.max_message_bytes * 4 // 3 + _ANSWER_FIELDS
        self._lines = _native.bulk.NatsRows((), 0, 1, 1, largest, bytearray)

    def _wrap(self, deadline: float) -> None:
        context = self._access.context or ssl.create_default_context()
        if self.start != self.end:
            raise ServerProtocolError(f"{self.address} sent more than its greeting before TLS")
        try:
            left = self._left(deadline, "its part of the TLS handshake")
            self._socket.settimeout(min(left, LONGEST_WAIT))
            self._socket = context.wrap_socket(self._socket, server_hostname=self.server_name)
        except OSError as exc:
            raise TransportError(f"{self.address}: TLS failed: {exc}") from exc

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()

    def wake(self) -> None:
        """Interrupt a wait in another thread. Makes the connection unusable."""
        with contextlib.suppress(OSError):
            # SSLSocket.shutdown would first drop TLS: the other thread could then read and send plain bytes.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def is_usable(self) -> bool:
        """Handle the frames that have arrived; return False if the connection is lost or about to end."""
        try:
            self.fill(0)
            while self.handle_next()[0]:
                pass
        except LiftEnvelopeError:
            return False
        return not self.leaving

    # Sending

    def send(self, data: bytes, deadline: float | None = None) -> None:
        """Send all bytes.

        Args:
            data: The bytes.
            deadline: Deadline by ``time.monotonic()``, at most ``stall_timeout`` seconds away. Default:
                ``stall_timeout`` seconds from now.

        Raises:
            TransportError: Sending failed or did not complete in time.
        """
        limit = min(self._access.stall_timeout, LONGEST_WAIT)
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
        """End a subscription. Messages already in transit still arrive."""
        self.send(b"UNSUB %d\r\n" % sid)

    def publish(self, subject: str, payload: bytes, reply: str = "", deadline: float | None = None) -> None:
        """Publish a message. ``deadline`` is as for :meth:`send`."""
        words = " ".join(word for word in ("PUB", subject, reply, str(len(payload))) if word)
        self.send(words.encode() + b"\r\n" + payload + b"\r\n", deadline)

    def flush(self, timeout: float) -> None:
        """Wait until the server has taken all that was sent.

        Raises:
            CallTimeoutError: The server did not answer a PING within ``timeout`` seconds.
            TransportError: The connection was lost.
        """
        deadline, wanted = time.monotonic() + timeout, self._pongs + 1
        self.send(b"PING\r\n", deadline)
        while self._pongs < wanted:
            self._next_other(deadline, "an answer to PING")

    # Receiving

    def fill(self, timeout: float) -> bool:
        """Wait for more bytes; return True if some came.

        Args:
            timeout: Seconds to wait; 0 to poll.

        Raises:
            TransportError: The connection was lost.
        """
        self._make_room(1)
        try:
            self._socket.settimeout(min(timeout, LONGEST_WAIT))
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
        """Make room for more of the next message, which has ``size`` bytes from :attr:`start` on.

        The size is only a claim of the server. So the buffer does not grow to the size at once, but doubles
        whenever it is nearly full, which ties memory use to the bytes received.
        """
        self._make_room(min(size - (self.end - self.start), _LEAST))

    def _make_room(self, more: int) -> None:
        """Make room behind the received bytes: move them to the front, or into a buffer of twice the size."""
        least = max(more, _LEAST) if self.start else more
        if least <= len(self._buffer) - self.end and (self.start < self.end or not self.start):
            return
        held = self.end - self.start
        if held + more > len(self._buffer):
            larger = bytearray(2 * len(self._buffer))
            larger[:held] = self.view[self.start : self.end]
            self._buffer, self.view = larger, memoryview(larger)
        elif held:
            self.view[:held] = self.view[self.start : self.end]  # the parts may overlap
        self.start, self.end = 0, held

    # What is not a row

    def handle(self, line: tuple[int, ...], deadline: float | None = None) -> Frame | None:
        """Consume the next frame, which is not a row; return it if it is a message of a subscription.

        Answers a PING, updates ``info``, and stores the answer to the current request.

        Args:
            line: Position of the frame, from the row reader: start of the body, end, subscription number,
                and size of the headers.
            deadline: Deadline for answering a PING, as for :meth:`send`.

        Raises:
            TransportError: The server reported an error with -ERR.
            PermissionDeniedError: The server denied the login or a permission.
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
        """Return the fields of INFO that are used here, after checking their types and sizes."""
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
        if is_refused_login(text):
            raise PermissionDeniedError(0, refused_login(str(self.address)))
        is_denied = _DENIED in text.lower()  # before a short secret is taken out of these words
        violation = violation_in(text)
        if violation is not None and violation.verb == "publish":
            self.denied, self.denied_subject = self.denied + 1, violation.subject
        for secret in (self._access.password, self._access.token):
            if secret:  # a server may echo what it received
                text = text.replace(secret, "***")
        if is_denied:
            raise PermissionDeniedError(0, f"{self.address}: {text}")
        raise TransportError(f"{self.address}: {text}")

    def _next_other(
        self, deadline: float, what: str, check: Callable[[], None] | None = None
    ) -> Frame | None:
        """Wait for the next frame, which must not be a row, and handle it.

        Args:
            deadline: Deadline by ``time.monotonic()``.
            what: The awaited frame, for error texts.
            check: Called at least every 0.5 s. An error that it raises ends the wait, not the connection.

        Raises:
            CallTimeoutError: The deadline has passed; the message names ``what`` is missing.
        """
        while True:
            left = self._left(deadline, what)  # also applies if the server keeps sending other frames
            if check is not None:
                check()
                left = min(left, _LOOK)
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
        """Return the seconds until a deadline.

        Raises:
            CallTimeoutError: The deadline has passed.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise CallTimeoutError(f"{self.address} did not send {what} in time")
        return left

    def _check_greeting(self) -> None:
        """Reject a server of another protocol by the first bytes of its greeting.

        The first frame of an HTTP/2 server is short and has no line end: waiting for a line would time out.

        Raises:
            ServerProtocolError: The greeting does not begin with INFO.
        """
        first = bytes(self.view[self.start : min(self.end, self.start + len(_GREETING))])
        if not _GREETING.startswith(first):
            hint = "; so a gRPC server greets, which has another port" if first.startswith(b"\0\0") else ""
            raise ServerProtocolError(self._broken() + hint)

    def next_frame(self) -> Frame | None:
        """Handle received frames and return the first message of a subscription; None without a whole one.

        Raises:
            TransportError: As for :meth:`handle`.
        """
        while True:
            was_there, frame = self.handle_next()
            if frame is not None or not was_there:
                return frame

    def handle_next(self) -> tuple[bool, Frame | None]:
        """Handle the next frame if it has arrived completely.

        Returns:
            True if a frame was handled; and the frame if it is a message of a subscription, else None.

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
        """Return the error for an invalid frame, or for a message larger than ``max_message_bytes``."""
        size, limit = claimed_size(self.view, self.start, self.end), self._access.max_message_bytes
        if self._pongs and size > limit:
            text = f"{self.address} sent a message of {size} bytes; max_message_bytes is {limit}"
            return StreamMessageTooLargeError(0, text)
        return ServerProtocolError(self._broken())

    # Requests

    def request(
        self,
        subject: str,
        payload: Mapping[str, Any] | bytes | None = None,
        check: Callable[[], None] | None = None,
    ) -> Frame:
        """Send a request and return the answer. Drops messages of other subscriptions that arrive meanwhile.

        Raises:
            NoJetStreamError: The subject has no responders.
            CallTimeoutError: No answer came in time.
            TransportError: The connection was lost.
        """
        self._requests += 1
        self._awaited = f"{self._inbox}.{self._requests}"
        deadline = time.monotonic() + self._access.timeout
        self.publish(subject, encode_payload(payload), self._awaited, deadline)
        while self._awaited not in self._answers:
            self._next_other(deadline, f"an answer on {subject!r}", check)
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
        check: Callable[[], None] | None = None,
    ) -> _T:
        """Send a JetStream API request; return the JSON answer as parsed by ``read``.

        The wait ends early with an error that ``check`` raises. It is called at least every 0.5 s.

        Raises:
            JetStreamError: The server refused the request.
            ServerProtocolError: The answer lacks a field, or a field has a wrong type.
            NoJetStreamError, CallTimeoutError, TransportError: As for :meth:`request`.
        """
        answer = read_answer(self.request(subject, payload, check).payload, subject)
        return read_as(read, answer, f"the answer on {subject!r}")
