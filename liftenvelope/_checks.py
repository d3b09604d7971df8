"""Checks and conversions of envelope values, shared by both twins of the codec.

The Cython twin has its own fast path for the usual types and calls these functions for all others, so that
the accepted values and the error texts are defined once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from operator import index
from pathlib import Path
from typing import Any, Final

from liftenvelope import _wire as w
from liftenvelope.errors import EnvelopeTooLargeError, UsageError, UsageTypeError

#: A URL scheme. One slash is enough: ``Path("s3://b")`` is ``s3:/b``. One letter is a Windows drive.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\]")


def as_local_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return a path of the local file system; a URL raises ``UsageError``."""
    path = os.fspath(value)
    if _SCHEME.match(path):
        text = f"{name} must be a path of the local file system, got {path!r}; URLs are not supported"
        raise UsageError(f"{text}: use a local path, and copy files to or from the object store")
    return Path(path)


def as_bytes(name: str, value: Any) -> bytes:
    """Return the content of any bytes-like object that is contiguous in memory."""
    if type(value) is bytes:
        return value
    try:
        view = memoryview(value)
    except TypeError:
        raise UsageTypeError(f"{name} must be bytes-like, not {type(value).__name__}") from None
    except (BufferError, ValueError) as exc:  # released, closed, or laid out in a way that has no buffer
        raise UsageError(f"{name} can't be read: {exc}") from exc
    if not view.c_contiguous:
        raise UsageTypeError(f"{name} must be contiguous in memory; pass bytes({name})")
    return view.tobytes()


def as_text(name: str, value: Any) -> str:
    """Check that a value is a str that UTF-8 can encode; return it as a plain str."""
    if not isinstance(value, str):
        raise UsageTypeError(f"{name} must be str, not {type(value).__name__}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name} {value!r} has a lone surrogate, which UTF-8 can't carry") from None
    return value if type(value) is str else str.__str__(value)


def as_optional_text(name: str, value: Any) -> str:
    """Check a str like :func:`as_text`; None becomes the empty string."""
    return "" if value is None else as_text(name, value)


def as_optional_bytes(name: str, value: Any) -> bytes:
    """Return the content of any contiguous bytes-like object; None becomes ``b""``."""
    return b"" if value is None else as_bytes(name, value)


def _as_int(name: str, value: Any, bits: int) -> int:
    try:
        number = index(value)
    except TypeError:
        raise UsageTypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise UsageError(f"{name} {number} does not fit in {bits} bits")
    return int(number)


def as_int32(name: str, value: Any) -> int:
    """Check that a value is an integer that fits in 32 signed bits; return it as an int."""
    return _as_int(name, value, 32)


def as_int64(name: str, value: Any) -> int:
    """Check that a value is an integer that fits in 64 signed bits; return it as an int."""
    return _as_int(name, value, 64)


def as_list(name: str, value: Any) -> list[Any]:
    """Check that a value is a list; return it."""
    if not isinstance(value, list):
        raise UsageTypeError(f"{name} must be a list, not {type(value).__name__}")
    return value


def as_headers(headers: Mapping[str, Any] | None) -> dict[str, bytes]:
    """Return a copy of headers with plain bytes as values."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise UsageTypeError(f"headers must be a mapping, not {type(headers).__name__}")
    return {
        as_text("header name", name): as_bytes(f"header {name!r}", value) for name, value in headers.items()
    }


def storable_headers(headers: Mapping[str, Any] | None) -> dict[str, bytes]:
    """Return a copy of headers, after checking the limits beyond which the server panics."""
    copy = as_headers(headers)
    if len(copy) > w.MAX_HEADERS:
        raise EnvelopeTooLargeError(f"{len(copy)} headers; the server stores at most {w.MAX_HEADERS}")
    for name in copy:
        # UTF-8 takes at most four bytes per character, so short names need no encoding to be checked.
        if len(name) > w.MAX_HEADER_KEY // 4 and (size := len(name.encode())) > w.MAX_HEADER_KEY:
            raise EnvelopeTooLargeError(
                f"header name {name[:20]!r}... has {size} bytes; over {w.MAX_HEADER_KEY} crash the server"
            )
    return copy
