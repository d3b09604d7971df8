"""Vocabulary of publish summaries: ``acked``, ``failures``, ``ok`` and ``raise_for_failures()``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Outcomes", "raise_failures", "warn_renamed"]

_E_co = TypeVar("_E_co", bound=Exception, covariant=True)


class Outcomes(Protocol[_E_co]):
    """Outcomes of the messages of a ``publish_many``, which :class:`PublishSummary` implements.

    A summary has errors, and an error may carry a summary: this protocol keeps the modules of both apart.
    """

    @property
    def acked(self) -> int:
        """Number of messages that are stored."""
        ...

    @property
    def failures(self) -> Mapping[int, _E_co]:
        """Errors of the other messages by their index in the input, in ascending order."""
        ...

    @property
    def offsets(self) -> Mapping[int, tuple[int, int]]:
        """First and last offset of the stored messages, by partition."""
        ...

    @property
    def ok(self) -> bool:
        """True if every message is stored."""
        ...

    def raise_for_failures(self) -> None:
        """Raise an ExceptionGroup of the failures, if there are any."""
        ...


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
