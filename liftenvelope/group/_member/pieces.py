"""Hands out decoded messages in pieces, so that none counts as processed before its rows were yielded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from liftenvelope._native import handout

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Part", "handed_out"]

_M = TypeVar("_M", bound=tuple[Any, ...])
#: A buffer, with the offsets and the messages that come next, as :meth:`HandOut.peek` returns them.
Part: TypeAlias = "tuple[handout.PartitionBuffer[_M], bytes, list[Any]]"
#: Bytes of an offset.
_OFFSET: Final = 8


def handed_out(
    hand: handout.HandOut[_M],
    parts: Sequence[Part[_M]],
    pieces: Iterable[tuple[int, list[pa.RecordBatch]]],
    may_go_on: Callable[[], bool],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of messages, and take the messages of a piece right before its last rows.

    A commit between two batches so covers no message whose rows were not yielded. The caller may do anything
    meanwhile, such as a seek, and the partitions may go to another member. Once the messages of a piece can't
    be taken any more, the rest is left out: the buffers still have what belongs to the member.

    Args:
        hand: Hands the messages out.
        parts: The messages.
        pieces: Number of messages up to the end of each piece, and its rows.
        may_go_on: Returns True while messages may be handed out.
    """
    begin = 0
    for end, rows in pieces:
        piece = _between(parts, begin, end)
        for each in rows[:-1]:
            if not (may_go_on() and hand.has_parts(piece)):
                return
            yield each
            hand.settle()
        if not (may_go_on() and hand.take_parts(piece)):
            return
        begin = end
        yield from rows[-1:]
        hand.settle()


def _between(
    parts: Iterable[Part[_M]], begin: int, end: int
) -> list[tuple[handout.PartitionBuffer[_M], bytes]]:
    """Return the buffers of the messages from one number to another, with the offsets."""
    found, at = [], 0
    for buffer, offsets, _ in parts:
        count = len(offsets) // _OFFSET
        first, last = max(begin - at, 0), min(end - at, count)
        if first < last:
            found.append((buffer, offsets[first * _OFFSET : last * _OFFSET]))
        at += count
    return found
