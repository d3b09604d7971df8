"""Reads TOML files of settings."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from liftenvelope.errors import UsageError

__all__ = ["load_toml"]

#: Largest file, in bytes. A longer one is another file, such as a log or a device.
_LARGEST: Final = 1 << 20


def load_toml(path: str, shown: str) -> dict[str, Any]:
    """Return the tables of a file.

    Args:
        path: Path of the file.
        shown: The path without secrets, for errors.

    Raises:
        UsageError: The file can't be read, is too long, or is not TOML in UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except (OSError, ValueError) as exc:  # ValueError: a NUL in the path
        reason = exc.strerror if isinstance(exc, OSError) else exc
        # The OSError has the path, which may be a URL with a password: it is not chained.
        raise UsageError(f"--config must be a file that can be read, got {shown!r}: {reason}") from None
    if len(raw) > _LARGEST:
        raise UsageError(f"{shown} must have at most {_LARGEST} bytes, got more")
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as exc:
        raise UsageError(f"{shown} must be TOML in UTF-8, got other bytes: {exc.reason}") from exc
    except ValueError as exc:  # a TOMLDecodeError, or an integer of thousands of digits
        raise UsageError(f"{shown} must be TOML: {exc}") from exc
    except RecursionError:
        raise UsageError(f"{shown} must be TOML: its arrays or tables are nested too deeply") from None
