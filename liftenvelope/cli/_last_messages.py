"""Start of the last messages of a JetStream stream, for ``--start -5``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftenvelope.jetstream import Stream

__all__ = ["sequence_of_last"]


async def sequence_of_last(stream: Stream, count: int, subjects: Sequence[str]) -> int:
    """Return the sequence to start at, so that the last messages are delivered.

    Messages may be deleted from between, and with subjects only some match, so sequences alone do not tell.
    A consumer says how many messages it has from a sequence on, so the sequence is found by bisection.

    Args:
        stream: The stream.
        count: Number of messages.
        subjects: Only messages on these subjects; empty for all.
    """
    from liftenvelope.jetstream.counting import count_from

    state = (await stream.info()).state
    first, end = max(state.first_seq, 1), state.last_seq + 1
    if not subjects and not state.num_deleted:
        return max(end - count, first)
    # From `low` on there are `count` messages or more, or `low` is the first. From `high` on fewer.
    low, high, width = end, end, count
    while low > first:
        low = max(end - width, first)
        if await count_from(stream, low, subjects) >= count:
            break
        high, width = low, width * 2
    while high - low > 1:
        middle = (low + high) // 2
        if await count_from(stream, middle, subjects) >= count:
            low = middle
        else:
            high = middle
    return low
