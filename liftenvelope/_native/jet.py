"""Table of JetStream publishes that wait for acks, without socket, clock or ``await``.

The twin of ``src/_fastjet.pyx``, and the readable reference. Acks are matched to publishes by the last token
of their subject, ``<inbox>.<token>``: a new number for each publish. The tokens of late and duplicate acks
are no longer in the table, so these acks are ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, Protocol

from liftenvelope._deadlines import DeadlineBuckets, repack
from liftenvelope.errors import UsageTypeError

__all__ = ["AckReader", "PublishTable", "QuickSender"]

#: Number of ack forms cached: in practice one for each stream that is published to.
_FORMS: Final = 1_024
#: A JSON integer of at most 18 digits, which fits in 64 bits.
_PLAIN: Final = re.compile(rb"0|[1-9][0-9]{0,17}")
_SEQUENCE: Final = b'"seq"'
#: Maximum seconds from a publish's deadline to its failure.
_RESOLUTION: Final = 0.05

_new = tuple.__new__


class Waiting(Protocol):
    """Future that waits for an ack.

    Attributes:
        kept: Data that the caller keeps to send the message again; set to None when the publish has ended.
    """

    kept: Any

    def done(self) -> bool:
        """Return True if the future has already ended, by cancellation."""

    def set_result(self, result: Any, /) -> None:
        """End the future with an ack."""

    def set_exception(self, exception: Any, /) -> None:
        """End the future with an error."""


class Timer(Protocol):
    """Timer for the earliest deadline.

    Attributes:
        at: Time that the timer is set for.
    """

    at: float

    def rearm(self) -> None:
        """Set the timer for the earliest deadline of the table."""


class AckReader:
    """Parses acks. The acks of one stream differ only in the last number, so only that number is parsed.

    Args:
        ack_type: The type of an ack, a named tuple whose second field is the sequence.
        read: Parses an ack of unknown form; returns the ack, or the error that it reports.

    Example:
        >>> from collections import namedtuple
        >>> import json
        >>> Ack = namedtuple("Ack", "stream seq")
        >>> read = AckReader(Ack, lambda data: Ack(**json.loads(data)))
        >>> read(b'{"stream":"ORDERS","seq":17}'), read(b'{"stream":"ORDERS","seq":18}')
        (Ack(stream='ORDERS', seq=17), Ack(stream='ORDERS', seq=18))
    """

    __slots__ = ("_ack_type", "_known", "_read")

    def __init__(self, ack_type: type[tuple[Any, ...]], read: Callable[[bytes], Any]) -> None:
        self._ack_type = ack_type
        self._read = read
        # Bytes before the number, to an ack of that form.
        self._known: dict[bytes, tuple[Any, ...]] = {}

    def __call__(self, data: bytes) -> Any:
        """Parse an ack; return it, or the error that it reports."""
        head, _, tail = data.rpartition(b":")
        number = tail[:-1]
        plain = tail.endswith(b"}") and _PLAIN.fullmatch(number) is not None
        known = self._known.get(head) if plain else None
        if known is not None:
            return _new(self._ack_type, (known[0], int(number), *known[2:]))
        outcome = self._read(data)
        # In valid JSON that ends with "seq":<number>}, the number is the whole last value: the sequence.
        if (
            plain
            and head.endswith(_SEQUENCE)
            and type(outcome) is self._ack_type
            and outcome[1] == int(number)
        ):
            if len(self._known) >= _FORMS:
                self._known.clear()
            self._known[head] = outcome
        return outcome


class PublishTable:
    r"""Futures of publishes, by the tokens of their acks and by their deadlines.

    Invariant: a publish is in exactly one bucket, and the index maps its token to that bucket. Each publish
    leaves both at once, whether it ends by an ack, an expiry or a withdrawal.

    Args:
        inbox: Prefix of the subjects of acks, the last dot included.
        read_ack: Parses the payload of an ack; returns the ack, or the error that it reports.
        refused: Interprets an answer with headers, which acks never have. Returns the error that ends the
            publish, or None if the publish continues elsewhere and ends later.

    Attributes:
        token: Token of the last publish entered.

    Example:
        >>> from concurrent.futures import Future
        >>> table = PublishTable("_INBOX.a.", bytes.decode, lambda future, headers: ValueError(headers))
        >>> future = Future()
        >>> table.enter(future, 5.0, b"PUB orders _INBOX.a.", b"", b"hello")
        b'PUB orders _INBOX.a.1 5\r\nhello\r\n'
        >>> table.settle([("_INBOX.a.1", b"", None, b"stored")]), future.result()
        (1, 'stored')
    """

    __slots__ = (
        "_at",
        "_bucket",
        "_deadlines",
        "_index",
        "_last",
        "_read_ack",
        "_refused",
        "_slice",
        "token",
    )

    token: str

    def __init__(
        self, inbox: str, read_ack: Callable[[bytes], Any], refused: Callable[[Any, Any], Exception | None]
    ) -> None:
        self._at = len(inbox)
        self._read_ack = read_ack
        self._refused = refused
        self._deadlines = DeadlineBuckets(_RESOLUTION)
        # Bucket for the deadline of the last publish.
        self._bucket: dict[str, Any] = {}
        self._slice = math.nan
        self._index: dict[str, dict[str, Any]] = {}
        self._last = 0
        self.token = ""

    def __len__(self) -> int:
        """Return the number of publishes that have not ended."""
        return len(self._index)

    def enter(self, future: Waiting, deadline: float, head: bytes, block: bytes, body: bytes) -> bytes:
        """Add a publish; return the command that sends it.

        Args:
            future: Future that waits for the ack.
            deadline: Time to give up, in seconds of the clock used for :meth:`expire`.
            head: The command up to the token: ``PUB <subject> <inbox>``.
            block: The encoded headers; empty for a message without headers.
            body: The payload.
        """
        if type(head) is not bytes or type(block) is not bytes or type(body) is not bytes:
            raise UsageTypeError("head, block and body must be bytes")
        number = deadline / _RESOLUTION
        number = math.floor(number) if math.isfinite(number) else math.nan
        if number != self._slice:
            self._bucket = self._deadlines.bucket(deadline)
            self._slice = number
        self._last += 1
        self.token = token = str(self._last)
        self._index[token] = self._bucket
        self._bucket[token] = future
        if not block:
            return b"%b%b %d\r\n%b\r\n" % (head, token.encode(), len(body), body)
        size = len(block) + len(body)
        return b"H%b%b %d %d\r\n%b%b\r\n" % (head, token.encode(), len(block), size, block, body)

    def withdraw(self, token: str) -> bool:
        """Remove a publish that was not sent. Return True if it was in the table."""
        return self._pop(token) is not None

    def settle(self, messages: list[tuple[str, bytes, bytes | None, bytes]]) -> int:
        """End the publishes answered by messages.

        Args:
            messages: Tuples of subject, reply, headers (None if none) and payload.

        Returns:
            Number of publishes removed from the table.
        """
        return sum([self.settle_one(subject, headers, data) for subject, _, headers, data in messages])

    def settle_one(self, subject: str, headers: Any, data: bytes) -> int:
        """End the publish answered by a message. Return 1, or 0 if it answers none."""
        future = self._pop(subject[self._at :])
        if future is None:
            return 0
        if not future.done():
            outcome = self._refused(future, headers) if headers else self._read_ack(data)
            if outcome is None and headers:
                return 1
            future.kept = None
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        return 1

    def _pop(self, token: str) -> Any:
        bucket = self._index.pop(token, None)
        if bucket is None:
            return None
        future = bucket.pop(token)
        # A dict emptied by pop() keeps its hash table, which may be as large as the largest burst.
        if not bucket:
            bucket.clear()
            if not self._index:
                self._index.clear()
        return future

    def waiting(self) -> list[tuple[Any, str]]:
        """Return the publishes that have not ended, with their tokens, in the order of :meth:`enter`."""
        return [(bucket[token], token) for token, bucket in self._index.items()]

    def expire(self, now: float) -> list[tuple[Any, str]]:
        """Remove the publishes whose deadlines have passed; return them with their tokens, earliest first."""
        self._slice = math.nan  # the cached bucket may expire
        expired: list[tuple[Any, str]] = []
        for bucket in self._deadlines.pop_due(now):
            for token, future in bucket.items():
                del self._index[token]
                expired.append((future, token))
        repack(self._index)
        return expired

    def expire_all(self) -> list[tuple[Any, str]]:
        """Remove every publish; return them with their tokens."""
        return self.expire(math.inf)

    def next_expiry(self) -> float | None:
        """Return the time when :meth:`expire` next has work; None if nothing is outstanding."""
        self._slice = math.nan  # the cached bucket is dropped if empty
        return self._deadlines.next_end()


class QuickSender:
    """Publishes on a connection that is up and has room; leaves every other publish to the caller.

    Invariant: :meth:`send` either does all of a publish, or returns None and has changed nothing. So the
    caller's own path checks, waits and raises errors, and this one needs to do none of that.

    Args:
        table: Table of the publishes without an ack.
        nc: Connection of nats-py with the private names that a direct ``Link`` has checked.
        future_type: Type of the futures, called with ``loop``.
        loop: Event loop of the connection.
        timer: Timer for the earliest deadline of the table.
        clock: Returns the time of the event loop.
        heads: Starts of the commands, up to the token, by checked subject.
        retries: Publishes that wait for a retry. They count as outstanding, and are in no table.
        max_outstanding: Maximum number of publishes without an ack.
    """

    __slots__ = ("_clock", "_future_type", "_heads", "_loop", "_most", "_nc", "_retries", "_table", "_timer")

    def __init__(
        self,
        table: PublishTable,
        nc: Any,
        future_type: Callable[..., Any],
        loop: Any,
        timer: Timer,
        *,
        clock: Callable[[], float],
        heads: dict[str, bytes],
        retries: dict[Any, Any],
        max_outstanding: int,
    ) -> None:
        self._table = table
        self._nc = nc
        self._future_type = future_type
        self._loop = loop
        self._timer = timer
        self._clock = clock
        self._heads = heads
        self._retries = retries
        self._most = max_outstanding

    def send(
        self, subject: str, body: bytes, block: bytes, seconds: float, attempts: int, wait: float
    ) -> Any:
        """Publish a message; return its future, or None if the caller has to check or to wait first.

        Args:
            subject: Subject of the message.
            body: The payload.
            block: The encoded headers; empty for a message without headers.
            seconds: Seconds to wait for the ack.
            attempts: Number of retries, kept in the future.
            wait: Seconds before each retry, kept in the future.
        """
        nc, size = self._nc, len(block) + len(body)
        head = self._heads.get(subject) if type(subject) is str else None
        if (
            head is None
            or len(self._table) + len(self._retries) >= self._most
            or nc._status != nc.CONNECTED
            or nc._pending_data_size >= nc._max_pending_size
            or type(nc._max_payload) is not int  # the server may have sent anything
            or size > nc._max_payload
        ):
            return None
        deadline = self._clock() + seconds
        future = self._future_type(loop=self._loop)
        future.subject, future.before = subject, nc._err
        future.kept = (deadline, head, block, body, attempts, wait) if attempts else None
        frame = self._table.enter(future, deadline, head, block, body)
        if deadline < self._timer.at:
            self._timer.rearm()
        self._buffer(frame, size)
        return future

    def _buffer(self, frame: bytes, size: int) -> None:
        """Buffer a command, and wake the connection's flusher."""
        nc = self._nc
        nc._pending.append(frame)
        nc._pending_data_size += len(frame)
        stats = nc.stats
        stats["out_msgs"] += 1
        stats["out_bytes"] += size
        if nc._flush_queue.empty():
            nc._flush_queue.put_nowait(self._loop.create_future())
