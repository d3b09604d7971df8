"""Header blocks: read as nats-py reads them, and made again from what it keeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from liftenvelope.nats.headers import header_block, headers_of

LINES = st.lists(
    st.one_of(
        st.sampled_from([b"A: b", b"A:c", b"a:  d ", b"no colon", b"in side: x", b": y", b"B:", b"C: a: b"]),
        st.binary(max_size=12).filter(lambda line: b"\r" not in line and b"\n" not in line),
    ),
    max_size=6,
)
STATUSES = st.sampled_from([b"", b" 408 Request Timeout", b" 100 Idle Heartbeat", b" 409 A", b" abc def"])


def by_nats_py(block: bytes) -> dict[str, str]:
    """Return the headers that nats-py parses. Its coroutine never waits."""
    nc: Any = Client()
    try:
        nc._process_headers(block).send(None)
    except StopIteration as end:
        return dict(end.value or {})
    raise AssertionError("it has waited")


@given(STATUSES, LINES)
def test_read_as_nats_py_does(status: bytes, lines: list[bytes]) -> None:
    block = b"\r\n".join([b"NATS/1.0" + status, *lines, b"", b""])
    assert headers_of(block) == by_nats_py(block)


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 503\r\nNats-Subject: a\r\n\r\n", {"Status": "503", "Nats-Subject": "a"}),
        (b"NATS/1.0\r\n\r\n", {}),
        (b"", {}),
        (b"garbage", {}),
    ],
)
def test_single_blocks(block: bytes, headers: dict[str, str]) -> None:
    assert headers_of(block) == headers


@given(st.dictionaries(st.sampled_from(["A", "b", "Nats-Pin-Id"]), st.sampled_from(["", "x", "ö: y"])))
def test_made_again(headers: dict[str, str]) -> None:
    block = header_block(headers)
    assert block is not None
    assert headers_of(block) == headers
