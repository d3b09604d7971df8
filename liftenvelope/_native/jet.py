"""Publishes to JetStream that wait for their acks: a table without socket, clock or ``await``.

The twin of ``src/_fastjet.pyx``, and the readable reference. An ack says which publish it answers by the last
token of the subject that it comes to: ``<inbox>.<token>``, with a new number for each publish. Late acks and
duplicates have tokens that are not in the table any more, and are passed over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, Protocol

from liftenvelope._deadlines import DeadlineBuckets, repack
from liftenvelope.errors import UsageTypeError

__all__ = ["AckReader", "PublishTable"]

#: How many forms of acks are remembered: one for each stream that is published to, in fact.
_FORMS: Final = 1_024
#: A number as JSON writes it, and with so few digits that it overflows nothing.
_PLAIN: Final = re.compile(rb"0|[1-9][0-9]{0,17}")
_SEQUENCE: Final = b'"seq"'
#: How much later than its deadline a publish may fail, in seconds.
_RESOLUTION: Final = 0.05

_new = tuple.__new__


class Waiting(Protocol):
    """What waits for an ack: a future."""

    def done(self) -> bool:
        """Whether it has ended already, by being cancelled."""

    def set_result(self, result: Any, /) -> None:
        """End it with an ack."""

    def set_exception(self, exception: Any, /) -> None:
        """End it with an error."""


class AckReader:
    """Reads acks. Those of one stream differ in their last number alone, and that is all that is looked at.

    Args:
        ack_type: The type of an ack, a named tuple whose second field is the sequence.
        read: Reads what has not been seen before: an ack, or the error that it reports.

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
        # What stands before the number, and an ack that began so.
        self._known: dict[bytes, tuple[Any, ...]] = {}

    def __call__(self, data: bytes) -> Any:
        """The ack in the data, or the error that it reports."""
        head, _, tail = data.rpartition(b":")
        number = tail[:-1]
        plain = tail.endswith(b"}") and _PLAIN.fullmatch(number) is not None
        known = self._known.get(head) if plain else None
        if known is not None:
            return _new(self._ack_type, (known[0], int(number), *known[2:]))
        outcome = self._read(data)
        # Of sound JSON that ends so, the number is all of the last value, and that is the sequence.
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
    r"""The futures of publishes, by the tokens of their acks and by their deadlines.

    Args:
        inbox: What the subjects of acks begin with, the last dot included.
        read_ack: Reads the payload of an ack: returns an ack, or the error that it reports.
        refused: Says what headers mean, since acks have none: the error that ends the publish, or None if it
            goes on elsewhere and ends later.

    Attributes:
        token: The token of the publish that was entered last.

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
        # The bucket of the slice in which the deadline of the last publish lies.
        self._bucket: dict[str, Any] = {}
        self._slice = math.nan
        self._index: dict[str, dict[str, Any]] = {}
        self._last = 0
        self.token = ""

    def __len__(self) -> int:
        """How many have neither their ack nor another end."""
        return len(self._index)

    def enter(self, future: Waiting, deadline: float, head: bytes, block: bytes, body: bytes) -> bytes:
        """Add a publish, and return the command that sends it.

        Args:
            future: What waits for the ack.
            deadline: When to give up, in seconds on the clock whose readings go to :meth:`expire`.
            head: The command up to the token: ``PUB <subject> <inbox>``.
            block: The headers as they are sent; empty for a message without.
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
        """Take a publish out that was not sent. Returns whether it was in the table."""
        return self._pop(token) is not None

    def settle(self, messages: list[tuple[str, bytes, bytes | None, bytes]]) -> int:
        """End the publishes that messages answer.

        Args:
            messages: Their subjects, replies, headers (None if there are none) and payloads.

        Returns:
            How many have left the table.
        """
        return sum([self.settle_one(subject, headers, data) for subject, _, headers, data in messages])

    def settle_one(self, subject: str, headers: Any, data: bytes) -> int:
        """End the publish that a message answers. Returns 1, or 0 if it answers none."""
        future = self._pop(subject[self._at :])
        if future is None:
            return 0
        if not future.done():
            outcome = self._refused(future, headers) if headers else self._read_ack(data)
            if outcome is None and headers:
                return 1
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
        # A dict that is popped empty keeps its table, which may be as large as the largest burst.
        if not bucket:
            bucket.clear()
            if not self._index:
                self._index.clear()
        return future

    def expire(self, now: float) -> list[tuple[Any, str]]:
        """Take out the publishes whose deadlines have passed, the earliest first, with their tokens."""
        self._slice = math.nan  # its bucket may be among them
        expired: list[tuple[Any, str]] = []
        for bucket in self._deadlines.pop_due(now):
            for token, future in bucket.items():
                del self._index[token]
                expired.append((future, token))
        repack(self._index)
        return expired

    def expire_all(self) -> list[tuple[Any, str]]:
        """Take out every publish."""
        return self.expire(math.inf)

    def next_expiry(self) -> float | None:
        """When :meth:`expire` will next have something to do; None if nothing is outstanding."""
        self._slice = math.nan  # its bucket goes if it is empty
        return self._deadlines.next_end()
