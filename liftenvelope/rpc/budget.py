"""Memory that connections share."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Budget"]


@dataclass(slots=True)
class Budget:
    """Bytes that several connections may hold together.

    Attributes:
        limit: Bytes allowed.
        used: Bytes held now.
    """

    limit: int
    used: int = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether more is held than allowed."""
        return self.used > self.limit
