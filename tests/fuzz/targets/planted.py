"""Faults that were planted, to see that the campaign finds them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.fuzz.target import Chunks, Exact, Target

__all__ = ["TARGETS"]


def read_except(letter: bytes, twin: Any, chunks: Chunks, exact: Exact) -> Any:
    """Leave out inputs that begin with the first letter of the other fault, which may be found first."""
    data = chunks[0] if chunks else b""
    return None if data[:1] == letter else twin.read(exact(data))


TARGETS = (
    Target("overread", "liftenvelope_fuzz_planted", partial(read_except, b"T"), lambda: [[b"....."]], most=1),
    Target(
        "difference", "liftenvelope_fuzz_planted", partial(read_except, b"O"), lambda: [[b"....."]], most=1
    ),
)
