"""Status codes, their errors, and addresses."""

from __future__ import annotations

import pickle

import pytest

from liftenvelope.errors import ServerError, UsageError
from liftenvelope.rpc.address import Address, parse_address
from liftenvelope.rpc.status import (
    CallNotProcessedError,
    RpcError,
    StatusCode,
    http_error,
    reset_error,
    status_error,
    trailers_error,
)


def test_ok_is_no_error() -> None:
    assert status_error(0, "whatever") is None
    assert trailers_error({b"grpc-status": b"0"}) is None


def test_error_carries_code_and_text() -> None:
    error = trailers_error({b"grpc-status": b"5", b"grpc-message": b"no%20such stre%C3%A4m%"})
    assert isinstance(error, ServerError)
    assert error.code is StatusCode.NOT_FOUND
    assert error.description == "no such streäm%"
    assert str(error) == "NOT_FOUND: no such streäm%"


def test_error_without_text_has_the_name() -> None:
    assert str(status_error(14)) == "UNAVAILABLE: UNAVAILABLE"


def test_unknown_code_keeps_its_number() -> None:
    error = trailers_error({b"grpc-status": b"99", b"grpc-message": b"new"})
    assert error is not None
    assert (error.code, str(error)) == (99, "status 99: new")


@pytest.mark.parametrize(
    "headers", [{}, {b"grpc-status": b""}, {b"grpc-status": b"-1"}, {b"grpc-status": b"9" * 30}]
)
def test_missing_or_broken_status_is_unknown(headers: dict[bytes, bytes]) -> None:
    error = trailers_error(headers)
    assert error is not None
    assert error.code == StatusCode.UNKNOWN


def test_text_that_is_not_utf8_is_shown() -> None:
    error = trailers_error({b"grpc-status": b"2", b"grpc-message": b"%FF\xfe!"})
    assert error is not None
    assert error.description == "\ufffd\ufffd!"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("404", StatusCode.UNIMPLEMENTED),
        ("503", StatusCode.UNAVAILABLE),
        ("418", StatusCode.UNKNOWN),
        ("\ufffd", StatusCode.UNKNOWN),
    ],
)
def test_http_status(status: str, code: StatusCode) -> None:
    assert http_error(status).code == code


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (0x0, StatusCode.INTERNAL),
        (0x8, StatusCode.CANCELLED),
        (0xB, StatusCode.RESOURCE_EXHAUSTED),
        (0xFFFF, StatusCode.INTERNAL),
    ],
)
def test_reset_reason(reason: int, code: StatusCode) -> None:
    error = reset_error(reason)
    assert isinstance(error, RpcError)
    assert error.code == code


def test_refused_stream_is_safe_to_repeat() -> None:
    assert isinstance(reset_error(0x7), CallNotProcessedError)


def test_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(RpcError(StatusCode.ABORTED, "text")))
    assert (error.code, str(error)) == (StatusCode.ABORTED, "ABORTED: text")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:1", Address("localhost", 1)),
        ("[::1]:65535", Address("::1", 65535)),
        ("a.b-c:9292", Address("a.b-c", 9292)),
    ],
)
def test_address(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "a b:1", "localhost", "localhost:", ":80", "a:0", "a:65536", "a:-1", "a:8o", "::1:80", "a:٣"]
)
def test_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("any_port", "text", "least"), [(False, "a:0", 1), (False, "a:65536", 1), (True, "a:65536", 0)]
)
def test_error_of_a_port_out_of_range_names_the_range(any_port: bool, text: str, least: int) -> None:
    with pytest.raises(UsageError, match=f"address must have a port from {least} to 65535, got '{text}'"):
        parse_address(text, any_port=any_port)
