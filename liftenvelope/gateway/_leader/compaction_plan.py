"""Plan of a compaction: remembers the newest message of each key and names the messages to delete.

A key is remembered as a 128-bit hash with a secret salt, as Kafka's log cleaner does with MD5. Among a
million keys, the probability that two have the same hash is 2**-89, and such keys can't be chosen without the
salt.

Hashes and sequences are kept in sorted arrays of 64-bit numbers, split by the hash into 512 tables so that an
insert moves a few kilobytes at most. Each key takes 27 bytes. A dict takes about 200.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from bisect import bisect_left
from typing import Final

__all__ = ["CompactionPlan"]

_TABLES: Final = 512
#: The number of a table is the top bits of the first 64 bits of the hash.
_TABLE_SHIFT: Final = 64 - 9
#: Bytes per key: three numbers of eight bytes, and an eighth more because arrays allocate ahead.
_PER_KEY: Final = 27
#: Bytes of three empty arrays.
_PER_TABLE: Final = 400


class _Table:
    """Newest sequence by hash, for hashes that begin with the same bits."""

    __slots__ = ("firsts", "seconds", "sequences")

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.seconds = array("Q")
        self.sequences = array("Q")

    def find(self, first: int, second: int) -> tuple[int, bool]:
        """Return the index of a hash and True, or the index to insert it at and False."""
        firsts = self.firsts
        at = bisect_left(firsts, first)
        while at < len(firsts) and firsts[at] == first:
            if self.seconds[at] == second:
                return at, True
            at += 1
        return at, False

    def insert(self, at: int, first: int, second: int, sequence: int) -> None:
        self.firsts.insert(at, first)
        self.seconds.insert(at, second)
        self.sequences.insert(at, sequence)


class CompactionPlan:
    """Names the messages to delete, given the messages of a partition in order.

    While all keys fit into ``max_memory``, the plan knows the newest message of each key, and later messages
    can be added (:attr:`is_whole`). Beyond that, the plan remembers only one share of the keys, chosen by
    hash. Each of the other shares needs another reading of the partition (:meth:`next_reading`).

    Args:
        max_memory: Maximum bytes of the remembered keys. Default: 16 MiB, enough for 600,000 keys.
        salt: Key of the hash, up to 64 bytes. Default: random.

    Example:
        >>> plan = CompactionPlan()
        >>> [plan.see(sequence, key) for sequence, key in enumerate([b"a", b"b", b"a", b"", b""], 1)]
        [None, None, 1, None, None]
        >>> plan.is_whole, plan.next_reading()
        (True, False)
        >>> plan.see(6, b"b")
        2
    """

    def __init__(self, max_memory: int = 16 << 20, *, salt: bytes | None = None) -> None:
        self._max_memory = max_memory
        self._salt = secrets.token_bytes(16) if salt is None else salt
        # Range of tables of this reading, and the ranges left to other readings.
        self._share = (0, _TABLES)
        self._left: list[tuple[int, int]] = []
        self._tables: dict[int, _Table] = {}
        self._keys = 0
        self._was_split = False

    @property
    def memory(self) -> int:
        """Size of the remembered keys in bytes."""
        return self._keys * _PER_KEY + len(self._tables) * _PER_TABLE

    @property
    def is_whole(self) -> bool:
        """True if the plan remembers the newest message of every key seen."""
        return not self._was_split

    def see(self, sequence: int, key: bytes) -> int | None:
        """Add a message; return the sequence of the message to delete, None for none.

        A message may be added again, for example after a reading was interrupted.

        Args:
            sequence: Sequence of the message.
            key: Key of the message; empty for none.
        """
        if not key:
            return None
        first, second = self._hash(key)
        number = first >> _TABLE_SHIFT
        low, high = self._share
        if not low <= number < high:
            return None
        table = self._tables.get(number)
        if table is None:
            table = self._tables[number] = _Table()
        at, known = table.find(first, second)
        if known:
            newest = table.sequences[at]
            table.sequences[at] = max(newest, sequence)
            return None if newest == sequence else min(newest, sequence)
        table.insert(at, first, second, sequence)
        self._keys += 1
        while self.memory > self._max_memory and self._can_split():
            self._split()
        return None

    def next_reading(self) -> bool:
        """Switch to the next share of keys; return True if all messages must be added again.

        If no share is left, a plan that was split drops all its keys. A whole plan keeps them.
        """
        if self.is_whole:
            return False
        self._tables.clear()
        self._keys = 0
        if self._left:
            self._share = self._left.pop()
            return True
        self._share, self._was_split = (0, _TABLES), False
        return False

    def _hash(self, key: bytes) -> tuple[int, int]:
        digest = hashlib.blake2b(key, digest_size=16, key=self._salt).digest()
        return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")

    def _can_split(self) -> bool:
        low, high = self._share
        return high - low > 1

    def _split(self) -> None:
        """Drop the upper half of the share and leave it to another reading."""
        low, high = self._share
        middle = (low + high) // 2
        self._share, self._was_split = (low, middle), True
        self._left.append((middle, high))
        for number in [number for number in self._tables if number >= middle]:
            self._keys -= len(self._tables.pop(number).firsts)
