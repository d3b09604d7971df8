"""Metadata, timeouts and texts in headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.errors import UsageError
from liftenvelope.rpc._headers import (
    decode_metadata,
    encode_metadata,
    encode_text,
    parse_timeout,
    timeout_header,
)
from liftenvelope.rpc.status import RpcError, trailers_error

names = st.from_regex(r"x-[0-9a-z_.-]{0,10}", fullmatch=True)
printable = st.from_regex(r"([!-~]([ -~]*[!-~])?)?", fullmatch=True)
entries = st.one_of(
    st.tuples(names.filter(lambda name: not name.endswith("-bin")), printable),
    st.tuples(names.map(lambda name: name + "-bin"), st.binary()),
)


@given(st.lists(entries))
def test_metadata_comes_out_as_it_went_in(metadata: list[tuple[str, str | bytes]]) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in encode_metadata(metadata)]
    assert decode_metadata(encoded) == metadata


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "x"),
        ("Upper", "x"),
        ("a b", "x"),
        (":path", "/"),
        ("grpc-status", "0"),
        ("te", "x"),
        ("content-type", "x"),
        ("x", "ü"),
        ("x", "a\n"),
        ("x", "line\r\nx-other: 1"),
        ("x", " a"),
        ("x", b"bytes"),
        ("x-bin", "text"),
    ],
)
def test_metadata_that_can_not_be_sent(name: str, value: str | bytes) -> None:
    with pytest.raises(UsageError, match="metadata"):
        encode_metadata([(name, value)])


def test_metadata_as_others_send_it() -> None:
    raw = [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"0"),
        (b"x-bin", b"AAE=,AAE, /w"),
        (b"y-bin", b"AA,/w=="),
        (b"z-bin", b"?"),
        (b"x", b"\xff"),
    ]
    assert decode_metadata(raw) == [("y-bin", b"\0"), ("y-bin", b"\xff"), ("x", "\ufffd")]


@given(st.text())
def test_texts_come_out_as_they_went_in(text: str) -> None:
    encoded = encode_text(text)
    assert encoded.isascii()
    assert encoded.isprintable()
    error = trailers_error({b"grpc-status": b"2", b"grpc-message": encoded.encode()})
    assert isinstance(error, RpcError)
    assert error.description == text.encode("utf-8", "replace").decode() if text else "UNKNOWN"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"4m", 0.004),
        (b"5u", 5e-6),
        (b"6n", 6e-9),
        (b"99999999H", 359999996400),
    ],
)
def test_timeouts(value: bytes, seconds: float) -> None:
    assert parse_timeout(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", [b"", b"S", b"1", b"1s", b"-1S", b"+1S", b"123456789S", b"1.5S", b"\xb2S", b"1\xff"]
)
def test_malformed_timeouts(value: bytes) -> None:
    assert parse_timeout(value) is None


@given(st.floats(min_value=1e-6, max_value=1e7))
def test_timeout_is_understood(timeout: float) -> None:
    parsed = parse_timeout(timeout_header(timeout).encode())
    assert parsed is not None
    assert timeout * (1 - 1e-9) <= parsed <= timeout * 1.02 + 1e-5
