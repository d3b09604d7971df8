"""Latencies of ``liftenvelope bench``: percentiles, and a histogram for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

__all__ = ["PERCENTILES", "bars", "buckets", "percentile", "shown_seconds"]

#: Percentiles that are shown.
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 100.0)
#: Characters of the longest bar.
_WIDTH: Final = 40
#: Parts of a full character, for the end of a bar.
_PARTS: Final = " ▏▎▍▌▋▊▉"
#: Bounds of buckets in each power of ten.
_STEPS: Final = (1, 2, 5)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that a share of the values does not exceed (nearest rank).

    Args:
        ordered: Values in ascending order, at least one.
        percent: Share in percent, more than 0 and at most 100.

    Example:
        >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 99)
        (2.0, 4.0)
    """
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def buckets(ordered: Sequence[float]) -> list[tuple[float, int]]:
    """Count values by their upper bounds, which are 1, 2 and 5 times powers of ten.

    Args:
        ordered: Values in ascending order. Values of 0 or less count for the lowest bound, 1 us.

    Returns:
        Upper bounds with the number of values up to it, and above the bound before. Empty buckets between
        others are kept, so that the bars show gaps.

    Example:
        >>> buckets([0.0011, 0.0015, 0.009])
        [(0.002, 2), (0.005, 0), (0.01, 1)]
    """
    found: list[tuple[float, int]] = []
    exponent, step, start = -6, 0, 0
    while start < len(ordered):
        bound = float(f"{_STEPS[step]}e{exponent}")
        end = start
        while end < len(ordered) and ordered[end] <= bound:
            end += 1
        if found or end > start:
            found.append((bound, end - start))
        start, step = end, step + 1
        if step == len(_STEPS):
            exponent, step = exponent + 1, 0
    return found


def bars(counts: Sequence[int]) -> list[str]:
    """Return a bar for each count, in eighths of a character. A count above 0 is always seen.

    Example:
        >>> [len(bar) for bar in bars([100, 50, 0, 1])]
        [40, 20, 0, 1]
    """
    most = max(counts, default=0)
    drawn = []
    for count in counts:
        eighths = max(round(count * _WIDTH * 8 / most), 1) if count else 0
        full, rest = divmod(eighths, 8)
        drawn.append("█" * full + (_PARTS[rest] if rest else ""))
    return drawn


def shown_seconds(seconds: float) -> str:
    """Return a duration with a unit.

    Example:
        >>> shown_seconds(0.00000251), shown_seconds(0.01234), shown_seconds(5), shown_seconds(1234.5)
        ('2.51 us', '12.3 ms', '5 s', '1234 s')
    """
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if abs(seconds) * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"
