"""Memory budget shared by connections."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Budget"]


@dataclass(slots=True)
class Budget:
    """Byte budget of several connections together.

    Attributes:
        limit: Bytes allowed.
        used: Bytes in use.
    """

    limit: int
    used: int = 0

    @property
    def is_exceeded(self) -> bool:
        """True if more bytes are in use than allowed."""
        return self.used > self.limit
