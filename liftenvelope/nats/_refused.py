"""Publishes that nats-server refuses by the permissions of the user, from its error texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

__all__ = ["OnRefused", "refused_subjects"]

_REFUSED: Final = re.compile(rb'Permissions Violation for Publish to "(.+)"')

#: Called with the number of refused publishes by subject. It must be fast and must not raise.
OnRefused = Callable[[Mapping[str, int]], None]


def refused_subjects(errors: Iterable[bytes]) -> Counter[str]:
    """Return the number of refused publishes by subject, from the texts of errors of any kind.

    Example:
        >>> refused_subjects([b'Permissions Violation for Publish to "orders"', b"Stale Connection"])
        Counter({'orders': 1})
    """
    found = [_REFUSED.fullmatch(text) for text in errors]
    return Counter(match[1].decode(errors="replace") for match in found if match is not None)
