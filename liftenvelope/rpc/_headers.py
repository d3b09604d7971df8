"""gRPC call headers: timeouts, metadata and status texts, as specified by `PROTOCOL-HTTP2.md`."""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote_from_bytes

from liftenvelope._checks import as_seconds
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Metadata",
    "decode_metadata",
    "encode_metadata",
    "encode_text",
    "is_grpc",
    "parse_timeout",
    "timeout_header",
]

#: Names and values. Values are bytes for names that end in ``-bin``, str for all others.
Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"

# A grpc-timeout has at most 8 digits. The finest unit that fits is used.
_TIMEOUT_UNITS: Final = (("u", 1_000_000), ("m", 1_000), ("S", 1))
_LONGEST_TIMEOUT: Final = 99_999_999
_UNIT_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

_NAME: Final = re.compile(r"[0-9a-z_.-]+")
# Printable ASCII without leading or trailing blanks, which HTTP would strip.
_VALUE: Final = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
# Header names of the protocol itself. All names that start with grpc- are reserved as well.
_OWN: Final = frozenset({"te", "content-type", "user-agent", "content-length", "connection"})
# grpc-message carries printable ASCII as it is, except for the percent sign.
_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def is_grpc(content_type: bytes) -> bool:
    """Return True for the content types of gRPC: ``application/grpc``, perhaps with ``+proto`` or the like.

    >>> is_grpc(b"application/grpc+proto"), is_grpc(b"application/grpc-web"), is_grpc(b"text/html")
    (True, False, False)
    """
    own, kind = b"application/grpc", content_type.lower()
    return kind == own or kind.startswith((own + b"+", own + b";"))


def timeout_header(timeout: float) -> str:
    """Encode a timeout in seconds as a ``grpc-timeout`` value, rounded up.

    Raises:
        UsageError: ``timeout`` is not a positive, finite number.

    >>> timeout_header(1.5), timeout_header(3600)
    ('1500000u', '3600000m')
    """
    timeout = as_seconds("timeout", timeout)
    for unit, per_second in _TIMEOUT_UNITS:
        if timeout * per_second <= _LONGEST_TIMEOUT:
            return f"{math.ceil(timeout * per_second)}{unit}"
    return f"{_LONGEST_TIMEOUT}S"


def parse_timeout(value: bytes) -> float | None:
    """Parse a ``grpc-timeout`` value; return seconds, or None if it is malformed.

    >>> parse_timeout(b"250m"), parse_timeout(b"1 S")
    (0.25, None)
    """
    digits, unit = value[:-1], value[-1:].decode("latin-1")
    if not (digits.isdigit() and len(digits) <= 8 and unit in _UNIT_SECONDS):
        return None
    return int(digits) * _UNIT_SECONDS[unit]


def encode_text(text: str) -> str:
    r"""Encode a text as a ``grpc-message`` value: its UTF-8, percent-encoded.

    >>> encode_text("100% n\u00f6\n")
    '100%25 n%C3%B6%0A'
    """
    return quote_from_bytes(text.encode("utf-8", "replace"), safe=_PLAIN)


def encode_metadata(metadata: Metadata) -> list[tuple[str, str]]:
    """Encode metadata as HTTP/2 headers.

    Raises:
        UsageError: A name or a value can't be sent, or the name is reserved by the protocol.
    """
    return [(name, _encode_value(name, value)) for name, value in metadata]


def _encode_value(name: str, value: str | bytes) -> str:
    if not _NAME.fullmatch(name) or name in _OWN or name.startswith("grpc-"):
        raise UsageError(
            f"metadata names must be of lower-case letters, digits and '_.-', not gRPC's own, got {name!r}"
        )
    if name.endswith("-bin"):
        if isinstance(value, str):
            raise UsageError(f"metadata {name!r} must be bytes, because its name ends in -bin, got str")
        return base64.b64encode(value).rstrip(b"=").decode("ascii")
    if isinstance(value, bytes) or not _VALUE.fullmatch(value):
        raise UsageError(
            f"metadata {name!r} must be printable ASCII, got {value!r}: bytes need a name that ends in -bin"
        )
    return value


def decode_metadata(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str | bytes]]:
    """Return the metadata among received headers. Binary values that are not base64 are dropped."""
    metadata: list[tuple[str, str | bytes]] = []
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1")
        if name.startswith((":", "grpc-")) or name in _OWN:
            continue
        if name.endswith("-bin"):
            metadata += ((name, value) for value in _decode_binary(raw_value))
        else:
            metadata.append((name, raw_value.decode("utf-8", "replace")))
    return metadata


def _decode_binary(raw: bytes) -> list[bytes]:
    # A proxy may have joined several values of one name with commas.
    try:
        return [base64.b64decode(part + b"=" * (-len(part) % 4), validate=True) for part in raw.split(b",")]
    except binascii.Error:
        return []
