"""The prefix of gRPC messages, and the errors of what must not come."""

from __future__ import annotations

import pytest

from liftenvelope._native import frames
from liftenvelope.rpc.framing import message_error
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.hostile.frames import message as frame_message


def refusal(data: bytes, max_message: int = 4) -> RpcError | None:
    cutter = frames.MessageCutter(max_message)
    assert cutter.feed(data) == []
    return message_error(cutter, max_message, ": raise it")


def test_prefix_is_that_of_grpc() -> None:
    assert frames.pack_messages([b"abc"]) == b"\x00\x00\x00\x00\x03abc"


def test_nothing_to_complain_of() -> None:
    assert refusal(b"") is None


@pytest.mark.parametrize("flag", [1, 2, 255])
def test_compressed_message_is_refused(flag: int) -> None:
    error = refusal(bytes([flag, 0, 0, 0, 1]))
    assert error is not None
    assert error.code == StatusCode.INTERNAL
    assert "compressed" in error.description


def test_long_message_is_refused_before_it_comes() -> None:
    error = refusal(frame_message(b"12345")[:5])
    assert error is not None
    assert error.code == StatusCode.RESOURCE_EXHAUSTED
    assert error.description == "a message of 5 bytes came, the limit is 4: raise it"
