"""Constants of the wire formats, and correlation ids.

Layout of an envelope, all integers big endian:

    0        4     5           6       7        8          header_len
    +--------+-----+-----------+-------+--------+----------+-----------------+
    | magic  | ver | header_len| flags | type   | (CRC-32C)| protobuf payload|
    +--------+-----+-----------+-------+--------+----------+-----------------+
      B90E43B4  00   08 or 0C                     4 bytes, when flag bit 0 is set

The CRC covers the payload. ``header_len`` may be larger than this version needs (room for extensions). With
the CRC flag it must be exactly 12: the server accepts no other value. The payload of type 0 is a ``Message``,
that of type 1 an ``Ack`` of ``protos/api.proto``.
"""

from __future__ import annotations

import os
from functools import cache
from itertools import chain, count
from operator import length_hint
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC: Final = b"\xb9\x0e\x43\xb4"
VERSION: Final = 0
HEADER_LEN: Final = 8
HEADER_LEN_CRC: Final = 12
FLAG_CRC: Final = 0x01

#: A longer header key makes the server's log encoder panic (liftbridge commitlog/encoder.go: int16 length).
MAX_HEADER_KEY: Final = 32_767
#: The server's log stores the number of headers in 16 bits.
MAX_HEADERS: Final = 65_535
#: protobuf's own limit on a message, and Arrow's on a value with 32-bit offsets.
MAX_ENVELOPE: Final = 2**31 - 1

#: Default prefix of the subjects of group coordinators, also of those in gateways.
GROUPS_PREFIX: Final = "liftenvelope.groups"
#: Beginnings of the internal subjects of NATS servers, gateways and group coordinators. The gateway's
#: connection has permission to publish there, so clients must not name such subjects.
INTERNAL_SUBJECTS: Final = ("$", "_lift.", f"{GROUPS_PREFIX}.")
#: Entry in a list of allowed inboxes that allows every subject that is not internal.
ANY_SUBJECT: Final = ">"

# protobuf wire types
VARINT: Final = 0
FIXED64: Final = 1
LEN: Final = 2
START_GROUP: Final = 3
END_GROUP: Final = 4
FIXED32: Final = 5
#: Maximum nesting depth of unknown groups, as in protobuf's own parsers.
MAX_GROUP_DEPTH: Final = 100

# Message
MSG_OFFSET: Final = 1
MSG_KEY: Final = 2
MSG_VALUE: Final = 3
MSG_TIMESTAMP: Final = 4
MSG_STREAM: Final = 5
MSG_PARTITION: Final = 6
MSG_SUBJECT: Final = 7
MSG_REPLY_SUBJECT: Final = 8
MSG_HEADERS: Final = 9
MSG_ACK_INBOX: Final = 10
MSG_CORRELATION_ID: Final = 11
MSG_ACK_POLICY: Final = 12

#: Headers that the server adds to every stored message; they repeat subject and replySubject.
SERVER_HEADERS: Final = ("subject", "reply")

#: Begins the id of the cursors in which members of a group keep its positions; the group's name follows.
GROUP_CURSOR: Final = "__group:"

# Message.HeadersEntry, and that of PublishRequest
ENTRY_KEY: Final = 1
ENTRY_VALUE: Final = 2

# Ack
ACK_STREAM: Final = 1
ACK_PARTITION_SUBJECT: Final = 2
ACK_MSG_SUBJECT: Final = 3
ACK_OFFSET: Final = 4
ACK_ACK_INBOX: Final = 5
ACK_CORRELATION_ID: Final = 6
ACK_ACK_POLICY: Final = 7
ACK_RECEPTION_TIMESTAMP: Final = 8
ACK_COMMIT_TIMESTAMP: Final = 9
ACK_ACK_ERROR: Final = 10

# PublishRequest
REQUEST_KEY: Final = 1
REQUEST_VALUE: Final = 2
REQUEST_STREAM: Final = 3
REQUEST_PARTITION: Final = 4
REQUEST_HEADERS: Final = 5
REQUEST_ACK_INBOX: Final = 6
REQUEST_CORRELATION_ID: Final = 7
REQUEST_ACK_POLICY: Final = 8
REQUEST_EXPECTED_OFFSET: Final = 9

# PublishResponse
RESPONSE_ACK: Final = 1
RESPONSE_ASYNC_ERROR: Final = 2
RESPONSE_CORRELATION_ID: Final = 3

# PublishAsyncError
ASYNC_ERROR_CODE: Final = 1
ASYNC_ERROR_MESSAGE: Final = 2

# Correlation ids
#: Digits of correlation ids.
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
_DIGIT_VALUES: Final = {digit: value for value, digit in enumerate(_ALPHABET)}
#: Allows 64 ** 6 prefixes, so that the ids of tables that share an inbox by mistake do not collide.
_PREFIX_LENGTH: Final = 6
#: Number of values of the last two digits of the counter.
_BLOCK: Final = len(_ALPHABET) ** 2
#: Longer counters are not parsed: a stray id of a megabyte would take minutes.
_MAX_COUNTER_LENGTH: Final = 12


@cache
def _tails() -> tuple[str, ...]:
    """Return all values of the last two digits, so that generating an id is one concatenation."""
    return tuple(tens + ones for tens in _ALPHABET for ones in _ALPHABET)


class IdSource:
    """Generates correlation ids: a random prefix and a base-64 counter of at least two digits.

    Attributes:
        stream: Infinite iterator of ids. Only one draw in 4,096 runs Python code.
    """

    __slots__ = ("_block", "_prefix", "_tails", "stream")

    def __init__(self) -> None:
        self._prefix = "".join(_ALPHABET[byte % 64] for byte in os.urandom(_PREFIX_LENGTH))
        self._block = -1
        self._tails: Iterator[str] = iter(())
        self.stream: Iterator[str] = chain.from_iterable(map(self._next_block, count()))

    def _next_block(self, block: int) -> Iterator[str]:
        self._block = block
        self._tails = iter(_tails())
        return map((self._prefix + _digits(block)).__add__, self._tails)

    @property
    def issued(self) -> int:
        """Number of ids drawn. Counting adds no cost to a draw."""
        return (self._block + 1) * _BLOCK - length_hint(self._tails)

    def is_issued(self, correlation_id: str) -> bool:
        """Return True if the id was drawn from this source."""
        return 0 <= self._counter(correlation_id) < self.issued

    def is_reserved(self, correlation_id: str) -> bool:
        """Return True if this source will generate the id in the future."""
        return correlation_id.startswith(self._prefix) and self._counter(correlation_id) >= self.issued

    def _counter(self, correlation_id: str) -> int:
        """Return the counter in an id; -1 if the id is not of this source."""
        digits = correlation_id[_PREFIX_LENGTH:]
        if not correlation_id.startswith(self._prefix) or not 2 <= len(digits) <= _MAX_COUNTER_LENGTH:
            return -1
        if digits[0] == _ALPHABET[0] and len(digits) > 2:
            return -1
        counter = 0
        for digit in digits:
            value = _DIGIT_VALUES.get(digit)
            if value is None:
                return -1
            counter = counter * len(_ALPHABET) + value
        return counter


class RecentIds:
    """The most recently added ids: at least the last ``size``, and at most twice as many.

    Two sets that rotate. An ordered dict would be slower: to drop its oldest id, Python scans past the holes
    left by earlier drops.
    """

    __slots__ = ("_new", "_old", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._new: set[str] = set()
        self._old: set[str] = set()

    def add(self, correlation_id: str) -> None:
        """Add an id. If the newer set is full, drop the older set first."""
        if len(self._new) >= self._size:
            self._old, self._new = self._new, set()
        self._new.add(correlation_id)

    def discard(self, correlation_id: str) -> None:
        """Remove an id, if present."""
        self._new.discard(correlation_id)
        self._old.discard(correlation_id)

    def __contains__(self, correlation_id: str) -> bool:
        return correlation_id in self._new or correlation_id in self._old


def _digits(number: int) -> str:
    digits = ""
    while number:
        number, value = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[value] + digits
    return digits
