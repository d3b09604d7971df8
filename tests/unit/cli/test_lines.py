"""Lines of ``liftenvelope publish --lines``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.cli._publishing.lines import LineSplitter
from liftenvelope.errors import LiftEnvelopeError


def split(chunks: list[bytes], max_bytes: int = 1_000_000) -> list[bytes]:
    splitter = LineSplitter(max_bytes)
    found = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [*found, *splitter.finish()]


@given(st.lists(st.binary(max_size=20)), st.integers(min_value=0, max_value=5))
def test_lines_do_not_depend_on_the_chunks(chunks: list[bytes], line_ends: int) -> None:
    chunks = [*chunks, *[b"\n"] * line_ends]
    data = b"".join(chunks)
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert split(chunks) == expected
    assert split([data]) == expected
    assert split([bytes([one]) for one in data]) == expected


def test_empty_lines_and_carriage_returns_are_kept() -> None:
    assert split([b"a\r\n\n\nb"]) == [b"a\r", b"", b"", b"b"]


@pytest.mark.parametrize("rest", [b"", b"\nnext\n"])
def test_line_that_is_too_long_is_named_after_the_lines_before_it(rest: bytes) -> None:
    splitter = LineSplitter(5)
    lines = splitter.feed(b"1\n12345\n123456" + rest)
    assert [next(lines), next(lines)] == [b"1", b"12345"]
    with pytest.raises(LiftEnvelopeError, match="line 3 must be at most 5 bytes, got more"):
        next(lines)


def test_line_that_is_too_long_is_refused_before_its_end_is_read() -> None:
    splitter = LineSplitter(5)
    assert list(splitter.feed(b"123")) == []
    with pytest.raises(LiftEnvelopeError, match="line 1 must be at most 5 bytes"):
        list(splitter.feed(b"456"))
