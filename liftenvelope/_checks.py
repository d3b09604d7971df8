"""Checks and conversions of the values that go into envelopes, shared by both twins of the codec.

The Cython twin has a quick way of its own for what callers nearly always pass and comes here for the
rest, so that what is accepted and what the errors say is written once.
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
    """The content of any bytes-like object that is contiguous in memory."""
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
    """A string that UTF-8 can carry."""
    if not isinstance(value, str):
        raise UsageTypeError(f"{name} must be str, not {type(value).__name__}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name} {value!r} has a lone surrogate, which UTF-8 can't carry") from None
    return value if type(value) is str else str.__str__(value)


def as_optional_text(name: str, value: Any) -> str:
    """A string that UTF-8 can carry; None is the empty one."""
    return "" if value is None else as_text(name, value)


def as_optional_bytes(name: str, value: Any) -> bytes:
    """The content of any contiguous bytes-like object; None is the empty one."""
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
    """An integer that fits in 32 bits, signed."""
    return _as_int(name, value, 32)


def as_int64(name: str, value: Any) -> int:
    """An integer that fits in 64 bits, signed."""
    return _as_int(name, value, 64)


def as_list(name: str, value: Any) -> list[Any]:
    """A list, as it is."""
    if not isinstance(value, list):
        raise UsageTypeError(f"{name} must be a list, not {type(value).__name__}")
    return value


def as_headers(headers: Mapping[str, Any] | None) -> dict[str, bytes]:
    """A copy of headers with plain bytes for values."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise UsageTypeError(f"headers must be a mapping, not {type(headers).__name__}")
    return {
        as_text("header name", name): as_bytes(f"header {name!r}", value) for name, value in headers.items()
    }


def storable_headers(headers: Mapping[str, Any] | None) -> dict[str, bytes]:
    """A copy of headers, once it is sure that they would not make the server panic."""
    copy = as_headers(headers)
    if len(copy) > w.MAX_HEADERS:
        raise EnvelopeTooLargeError(f"{len(copy)} headers; the server stores at most {w.MAX_HEADERS}")
    for name in copy:
        # Four bytes a character are the most that UTF-8 takes: short names need no encoding to be sure.
        if len(name) > w.MAX_HEADER_KEY // 4 and (size := len(name.encode())) > w.MAX_HEADER_KEY:
            raise EnvelopeTooLargeError(
                f"header name {name[:20]!r}... has {size} bytes; over {w.MAX_HEADER_KEY} crash the server"
            )
    return copy
