"""Correlation ids of :mod:`liftenvelope.correlation`: their generator, and sets of recent ids."""

from __future__ import annotations

import secrets
import string
from itertools import chain, count
from operator import length_hint
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALPHABET: Final = string.digits + string.ascii_letters + "-_"
_DIGIT_VALUES: Final = {digit: value for value, digit in enumerate(_ALPHABET)}
#: Allows 64 ** 6 prefixes, so that the ids of tables that share an inbox by mistake do not collide.
_PREFIX_LENGTH: Final = 6
#: All values of the last two digits of the counter, so that generating an id is one concatenation.
_TAILS: Final = tuple(tens + ones for tens in _ALPHABET for ones in _ALPHABET)
#: Longer counters are not parsed: a stray id of a megabyte would take minutes.
_MAX_COUNTER_LENGTH: Final = 12


class IdSource:
    """Generates correlation ids: a random prefix and a base-64 counter of at least two digits.

    Attributes:
        stream: Infinite iterator of ids. Only one draw in 4,096 runs Python code.
    """

    __slots__ = ("_block", "_prefix", "_tails", "stream")

    def __init__(self) -> None:
        self._prefix = "".join(secrets.choice(_ALPHABET) for _ in range(_PREFIX_LENGTH))
        self._block = -1
        self._tails: Iterator[str] = iter(())
        self.stream: Iterator[str] = chain.from_iterable(map(self._next_block, count()))

    def _next_block(self, block: int) -> Iterator[str]:
        self._block = block
        self._tails = iter(_TAILS)
        return map((self._prefix + _digits(block)).__add__, self._tails)

    @property
    def issued(self) -> int:
        """Number of ids drawn. Counting adds no cost to a draw."""
        return (self._block + 1) * len(_TAILS) - length_hint(self._tails)

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
