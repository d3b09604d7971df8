"""Messages that are derived from a seed and an index, so that nothing of them must be kept."""

from __future__ import annotations

import random
from typing import Any, Final

__all__ = ["COLUMNS", "Messages", "Row", "columns_of", "make_marker"]

#: Key, value and headers of a message.
Row = tuple[bytes, bytes, dict[str, bytes]]

#: The columns of a message that was read.
COLUMNS: Final = ["offset", "key", "value", "headers"]

_BLOCK: Final = 4096
_SIZES: Final = (0, 5, 40, 100, 100, 100, 200, 300, 600, 2_000)
_MARKER: Final = b"marker."


class Messages:
    """Makes the messages of one run, and finds the index of a message that was read.

    Args:
        seed: Seed of the run. Messages of two seeds differ.
        partitions: Number of partitions. Message ``i`` belongs to partition ``i % partitions``.
        keyed: Whether messages have keys. JetStream has none.
        text: Whether values are short and printable.
    """

    def __init__(self, seed: int, partitions: int = 1, *, keyed: bool = True, text: bool = False) -> None:
        self.seed = seed
        self.partitions = partitions
        self.keyed = keyed
        self._text = text
        self._head = b"%d." % seed
        self._block = random.Random(f"messages {seed}").randbytes(2 * _BLOCK)

    def partition(self, index: int) -> int:
        """Return the partition of a message."""
        return index % self.partitions

    def value(self, index: int) -> bytes:
        """Return the value of a message: the seed, the index, and bytes that depend on both."""
        if self._text:
            return b"%b%d." % (self._head, index)
        size, at = _SIZES[(index * 7 + self.seed) % len(_SIZES)], index * 31 % _BLOCK
        return b"%b%d.%b" % (self._head, index, self._block[at : at + size])

    def key(self, index: int) -> bytes | None:
        """Return the key of a message, None for one that has none."""
        return b"key-%d" % (index % 97) if self.keyed and index % 4 else None

    def headers(self, index: int) -> dict[str, bytes] | None:
        """Return the headers of a message, None for one that has none."""
        if self._text or index % 5:
            return None
        return {"Number": b"%d" % index, "Kind": b"fault"}

    def row(self, index: int) -> Row:
        """Return all of a message, with b"" for no key, as it is read."""
        return self.key(index) or b"", self.value(index), self.headers(index) or {}

    def index_of(self, value: bytes) -> int:
        """Return the index of a message that was read, -1 for a marker, -2 for a message of nobody."""
        if value.startswith(_MARKER):
            return -1
        if not value.startswith(self._head):
            return -2
        digits = value[len(self._head) :].partition(b".")[0]
        return int(digits) if digits.isdigit() else -2


def make_marker(number: int) -> bytes:
    """Return the value of a message that belongs to no path, as needed after a kill of Liftbridge."""
    return _MARKER + b"%d" % number


def columns_of(batch: Any) -> tuple[list[int], list[bytes | None], list[bytes], list[dict[str, bytes]]]:
    """Return offsets, keys, values and headers of a record batch, without the headers of JetStream itself."""
    offsets, keys, values, headers = (batch[name].to_pylist() for name in COLUMNS)
    own = [{name: value for name, value in row if not name.startswith("Nats-")} for row in headers]
    return offsets, keys, values, own
