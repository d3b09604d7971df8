"""A sink of payloads that records them, and spans as sinks get them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["RecordingSink", "spans"]


def spans(*places: int) -> bytes:
    """Starts and ends of payloads, as sinks get them."""
    return struct.pack(f"={len(places)}q", *places)


class RecordingSink:
    """Records the payloads of a stream.

    Attributes:
        payloads: The payloads.
        calls: Number of calls that brought them.
    """

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.calls = 0

    def put(self, view: Buffer, spans: bytes) -> None:
        data = memoryview(view)
        self.calls += 1
        self.payloads += [bytes(data[start:end]) for start, end in struct.iter_unpack("=2q", spans)]

    @property
    def found(self) -> bytes:
        """All payloads together."""
        return b"".join(self.payloads)
