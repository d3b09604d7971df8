"""Helpers of publish summaries, which share ``acked``, ``failures``, ``ok`` and ``raise_for_failures()``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["raise_failures", "warn_renamed"]


def raise_failures(failures: Mapping[int, Exception], size: int) -> None:
    """Raise the failures of a batch, if any.

    Args:
        failures: Errors by message index.
        size: Number of messages in the batch.

    Raises:
        ExceptionGroup: All failures, ordered by index. A note on each error names its index.
    """
    if failures:
        text = f"{len(failures)} of {size} messages failed"
        raise ExceptionGroup(text, [_noted(error, index) for index, error in sorted(failures.items())])


def _noted(error: Exception, index: int) -> Exception:
    note = f"message {index} of the batch"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def warn_renamed(owner: str, old: str, new: str) -> None:
    """Warn the caller of a renamed property. The next version drops the old name."""
    warnings.warn(f"{owner}.{old} is deprecated: use {owner}.{new}", DeprecationWarning, stacklevel=3)
