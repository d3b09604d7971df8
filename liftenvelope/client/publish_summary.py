"""What became of many messages. On its own, since errors carry it as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from liftenvelope.errors import LiftEnvelopeError

__all__ = ["PublishSummary"]


@dataclass(frozen=True, slots=True)
class PublishSummary:
    """What became of the messages of a ``publish_many``.

    Attributes:
        acked: How many are stored.
        failed: Of the others the index in the input and the error, by index. A TransportError or
            AckTimeoutError with ``sent`` true says that the outcome is unknown.
        offsets: By partition, the first and the last offset that the stored ones got.
    """

    acked: int
    failed: tuple[tuple[int, LiftEnvelopeError], ...]
    offsets: Mapping[int, tuple[int, int]]

    def __str__(self) -> str:
        return f"{self.acked} stored, {len(self.failed)} failed"
