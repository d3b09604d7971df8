"""Faults that were planted, to see that the campaign finds them."""

from __future__ import annotations

from typing import Any

from tests.fuzz.target import Chunks, Exact, Target

__all__ = ["TARGETS"]


def read(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    return twin.read(exact(chunks[0] if chunks else b""))


def read_but_not_over(twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Leave out what begins with the first letter of the other fault."""
    return None if chunks and chunks[0][:1] == b"O" else read(twin, chunks, exact)


TARGETS = (
    Target("overread", "liftenvelope_fuzz_planted", read, lambda: [[b"....."]], most=1),
    Target("difference", "liftenvelope_fuzz_planted", read_but_not_over, lambda: [[b"....."]], most=1),
)
