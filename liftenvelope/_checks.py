"""Checks and conversions of arguments: one function for each kind of value, and one wording for all.

An error text names the argument, what it must be, and the value: ``priority must be at most 9, got 10``.

Both twins of the codec use these checks. The Cython twin has its own fast path for the usual types and calls
these functions for all others, so that the accepted values and the error texts are defined once.

Liftbridge servers check neither stream names nor settings. Some names make the process panic, and again at
every start, because the request is in its Raft log by then. With other names the next request makes it panic.
Negative settings do the same. So :func:`check_stream_name` and :func:`check_settings` come first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from operator import index
from pathlib import Path
from typing import Any, Final, TypeVar

from liftenvelope import _wire as w
from liftenvelope.errors import EnvelopeTooLargeError, MissingExtraError, UsageError, UsageTypeError

#: A URL scheme. One slash is enough: ``Path("s3://b")`` is ``s3:/b``. One letter is a Windows drive.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\]")
#: Largest number of seconds: the largest finite float. A larger int can't become a float.
_MOST_SECONDS: Final = sys.float_info.max
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1
#: Largest ``max_bytes`` of Arrow batches: the offsets in a column have 31 bits.
MOST_BATCH_BYTES: Final = 1 << 30
_Choice = TypeVar("_Choice")
#: Longest value shown in an error text, in characters.
_LONGEST_SHOWN: Final = 80
#: The server's own streams. The server refuses these names too; the check here fails earlier.
RESERVED: Final = ("__cursors", "__activity")
# Bytes. The server creates a folder with the stream's name: 300 bytes are too long, 240 bytes worked.
_LONGEST_NAME: Final = 240
# Largest number of milliseconds that fits in the server's 64-bit nanoseconds.
_LONGEST_MS: Final = (2**63 - 1) // 1_000_000
_TIMES: Final = ("retentionMaxAge", "cleanerInterval", "segmentMaxAge", "autoPauseTime")
#: A quoted value, which stays as it is; an argument with a value, such as ``on_bad='column'``, or without the
#: value, such as ``columns=``; a name of several words, such as ``max_bytes``.
_NAMED: Final = re.compile(
    r"""(?<![\w=])(?P<quoted>'[^'\n]*'|"[^"\n]*")"""
    r"""|(?<![\w.$-])(?P<argument>[a-z]+(?:_[a-z]+)*)=(?:'(?P<text>[^'\n]*)'|\.\.\.|(?P<plain>\w*))"""
    r"""|(?<![\w.$/=-])(?P<name>[a-z]+(?:_[a-z]+)+)(?![\w=(/[]|\.\w)"""
)


def about(error: UsageError, *arguments: str) -> UsageError:
    """Return an error after noting which arguments its text names."""
    error.arguments = arguments
    return error


def with_options(text: str, option_of: Callable[[str], str | None], *, between: str) -> str:
    """Return the text of an error with options in place of the arguments that it names.

    The first word of ``NAME must ...`` is an argument also if it is a single word.

    Args:
        text: Text of an error of a call.
        option_of: Returns the option that sets an argument; None if there is none, and the name stays.
        between: Text between an option and its value, such as a space.

    Example:
        >>> with_options("raise max_bytes, got 'max_bytes'", {"max_bytes": "--max-bytes"}.get, between=" ")
        "raise --max-bytes, got 'max_bytes'"
    """

    def replaced(found: re.Match[str]) -> str:
        name = found["argument"] or found["name"]
        if name is None:
            return found[0]
        option = option_of(name)
        if found["name"]:
            return option or name
        value = found["text"] or found["plain"]
        if option is None:  # a setting of the server, without Python's word for it
            return name if value == "True" else found[0]
        return option if value in (None, "", "True") else f"{option}{between}{value}"

    name, _, rest = text.partition(" ")
    if rest.startswith("must ") and (first := option_of(name)) is not None:
        rest = re.sub("^must be None ", "must be left out ", rest)
        return f"{first} {_NAMED.sub(replaced, rest)}"
    return _NAMED.sub(replaced, text)


def shown(value: object) -> str:
    """Return a value for an error message, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # by default, Python prints no int of more than 4,300 digits
        return "an int of more digits than Python prints"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def as_signed_seconds(name: str, value: Any) -> float:
    """Check that a value is a number of seconds of any sign and size; return it as it is.

    Raises:
        UsageTypeError: The value is not an int or a float, or is a bool.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageTypeError(f"{name} must be a number of seconds, got {shown(value)}")
    return value


def as_seconds(name: str, value: Any, *, zero: bool = False) -> float:
    """Check that a value is a positive, finite number of seconds; return it as a float.

    Args:
        name: Name of the argument, for the text of errors.
        value: Number of seconds.
        zero: Whether 0 is allowed as well. Default False.

    Raises:
        UsageError: The value is negative or not finite, or 0 where that is not allowed.
        UsageTypeError: The value is not an int or a float, or is a bool.
    """
    seconds = as_signed_seconds(name, value)
    if not (0 < seconds <= _MOST_SECONDS or (zero and seconds == 0)):
        expected = "a finite number of seconds, 0 or more" if zero else "a positive number of seconds"
        raise UsageError(f"{name} must be {expected}, got {shown(value)}")
    return float(seconds)


def as_integer(name: str, value: Any) -> int:
    """Check that a value is an integer of any size; return it as an int.

    Raises:
        UsageTypeError: The value has no ``__index__``, or is a bool.
    """
    if not isinstance(value, bool):
        try:
            return int(index(value))
        except TypeError:
            pass
    raise UsageTypeError(f"{name} must be an integer, got {shown(value)}")


def as_count(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Check that a value is an integer from ``least`` to ``most``; return it as an int.

    Args:
        name: Name of the argument, for the text of errors.
        value: The number.
        least: Smallest allowed number. Default 1.
        most: Largest allowed number. None, the default, allows any.

    Raises:
        UsageError: The number is out of range.
        UsageTypeError: The value has no ``__index__``, or is a bool.
    """
    number = as_integer(name, value)
    if number < least:
        raise UsageError(f"{name} must be at least {least}, got {shown(number)}")
    if most is not None and number > most:
        raise UsageError(f"{name} must be at most {most}, got {shown(number)}")
    return number


def as_flag(name: str, value: Any) -> bool:
    """Check that a value is True or False; return it. Any text would count as True, ``"no"`` too."""
    if not isinstance(value, bool):
        raise UsageTypeError(f"{name} must be True or False, got {shown(value)}")
    return value


def is_encodable(text: str) -> bool:
    """Return True if UTF-8 can encode the text: it contains no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
        raise UsageTypeError(f"{name} must be bytes-like, got {type(value).__name__}") from None
    except (BufferError, ValueError) as exc:  # released, closed, or laid out in a way that has no buffer
        raise UsageError(f"{name} must be a readable buffer: {exc}") from exc
    if not view.c_contiguous:
        raise UsageTypeError(f"{name} must be contiguous in memory: pass bytes({name})")
    return view.tobytes()


def as_text(name: str, value: Any) -> str:
    """Check that a value is a str that UTF-8 can encode; return it as a plain str."""
    if not isinstance(value, str):
        raise UsageTypeError(f"{name} must be str, got {type(value).__name__}")
    plain = value if type(value) is str else str.__str__(value)  # a subclass may have methods of its own
    if not is_encodable(plain):
        text = f"{name} must not contain a lone surrogate, which UTF-8 cannot encode, got {shown(plain)}"
        raise UsageError(text)
    return plain


def as_full_text(name: str, value: Any) -> str:
    """Check a str like :func:`as_text`, and that it is not empty; return it as a plain str."""
    if not (text := as_text(name, value)):
        raise about(UsageError(f"{name} must not be empty, got ''"), name)
    return text


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
        raise UsageTypeError(f"{name} must be an integer, got {type(value).__name__}") from None
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise UsageError(f"{name} must fit in {bits} bits, got {shown(number)}")
    return int(number)


def as_int32(name: str, value: Any) -> int:
    """Check that a value is an integer that fits in 32 signed bits; return it as an int."""
    return _as_int(name, value, 32)


def as_int64(name: str, value: Any) -> int:
    """Check that a value is an integer that fits in 64 signed bits; return it as an int."""
    return _as_int(name, value, 64)


def as_choice(name: str, value: _Choice, choices: Iterable[_Choice], *, extra: str = "") -> _Choice:
    """Check that a value is one of a few; return it.

    Args:
        name: Name of the argument, for the text of errors.
        value: The value.
        choices: Allowed values.
        extra: Text that follows the choices, about values that the caller has accepted before.

    Raises:
        UsageError: The value is none of the choices.
    """
    allowed = tuple(choices)
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(map(repr, allowed))}{extra}, got {shown(value)}")
    return value


def as_names(name: str, values: Any, choices: Iterable[str]) -> tuple[str, ...]:
    """Return some of several names, as they are given.

    Args:
        name: Name of the argument, for the text of errors.
        values: The names.
        choices: Allowed names.

    Raises:
        UsageError: A name is unknown or given twice, or there is none.
        UsageTypeError: The value is a string, or not iterable.
    """
    allowed = tuple(choices)
    expected = f"{name} must be some of {', '.join(map(repr, allowed))}"
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UsageTypeError(f"{expected}, in a list, got {shown(values)}")
    names = tuple(values)
    for i, one in enumerate(names):
        if one not in allowed:
            raise UsageError(f"{expected}, got {shown(one)}")
        if one in names[:i]:
            raise UsageError(f"{expected}, each once, got {shown(one)} twice")
    if not names:
        raise UsageError(f"{expected}, got none")
    return names


def as_list(name: str, value: Any) -> list[Any]:
    """Check that a value is a list; return it."""
    if not isinstance(value, list):
        raise UsageTypeError(f"{name} must be a list, got {type(value).__name__}")
    return value


def check_calls(**calls: object) -> None:
    """Raise UsageTypeError if a callback, given by its name, is neither None nor callable."""
    for name, value in calls.items():
        if value is not None and not callable(value):
            raise UsageTypeError(f"{name} must be a function or None, got {value!r}")


def as_inboxes(name: str, prefixes: Any) -> tuple[str, ...]:
    """Return allowed prefixes of inboxes as a tuple.

    Args:
        name: Name of the option, for the error.
        prefixes: Iterable of strings.

    Raises:
        UsageError: A prefix is empty.
        UsageTypeError: The prefixes are not strings.
    """
    found = tuple(prefixes) if isinstance(prefixes, Iterable) else (prefixes,)
    if isinstance(prefixes, str) or not all(isinstance(prefix, str) for prefix in found):
        raise UsageTypeError(f"{name} must be a tuple of str, got {prefixes!r}")
    if "" in found:
        text = f'{name} must not hold an empty prefix, got {prefixes!r}: use "{w.ANY_SUBJECT}" to allow any'
        raise UsageError(text)
    return found


def as_headers(headers: Mapping[str, Any] | None) -> dict[str, bytes]:
    """Return a copy of headers with plain bytes as values."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise UsageTypeError(f"headers must be a mapping, got {type(headers).__name__}")
    return {
        as_text("header name", name): as_bytes(f"header {name!r}", value) for name, value in headers.items()
    }


def storable_headers(headers: Mapping[str, Any] | None) -> dict[str, bytes]:
    """Return a copy of headers, after checking the limits beyond which the server panics."""
    copy = as_headers(headers)
    if len(copy) > w.MAX_HEADERS:
        raise EnvelopeTooLargeError(f"headers must be at most {w.MAX_HEADERS}, got {len(copy)}")
    for name in copy:
        # UTF-8 takes at most four bytes per character, so short names need no encoding to be checked.
        if len(name) > w.MAX_HEADER_KEY // 4 and (size := len(name.encode())) > w.MAX_HEADER_KEY:
            most = f"header name {name[:20]!r}... must be at most {w.MAX_HEADER_KEY} bytes, got {size}"
            raise EnvelopeTooLargeError(f"{most}: a longer one crashes the server")
    return copy


def check_stream_name(name: str) -> None:
    """Raise UsageError for a stream name that is invalid or would crash the server."""
    for is_faulty, fault in _FAULTS:
        if is_faulty(name):
            raise UsageError(f"stream name {fault}, got {name!r}")


def _has_stray_dot(name: str) -> bool:
    return name.startswith(".") or name.endswith(".") or ".." in name


def _has_wildcard(name: str) -> bool:
    return "*" in name or ">" in name


def _has_odd_character(name: str) -> bool:
    import unicodedata  # every user of the package would load it, and few name a stream

    return any(unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cs") for character in name)


def _is_too_long(name: str) -> bool:
    return len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME


_FAULTS: Final[tuple[tuple[Callable[[str], bool], str], ...]] = (
    (lambda name: not name, "must not be empty"),
    (lambda name: name in RESERVED, "must not be one that the server reserves"),
    (_is_too_long, f"must be at most {_LONGEST_NAME} bytes"),
    (_has_stray_dot, "must not have a dot at its start or end, or two in a row"),
    (_has_wildcard, "must not have a wildcard"),
    (_has_odd_character, "must not have a space, a control character or a lone surrogate"),
)


def check_settings(settings: Mapping[str, int | bool]) -> None:
    """Raise UsageError for a setting that would break the stream or server. Keys: API names of settings."""
    for name, value in settings.items():
        if value < 0:
            raise UsageError(f"{name} must be at least 0, got {value!r}")
        if name in _TIMES and value > _LONGEST_MS:
            raise UsageError(f"{name} must be at most {_LONGEST_MS} milliseconds, got {value!r}")


#: Packages whose modules have other names.
_PACKAGES = {
    "google": "protobuf",
    "opentelemetry": "opentelemetry-api",
    "pyiceberg_core": "'pyiceberg[pyiceberg-core]'",
}


def require(module: str, extra: str | None) -> Any:
    """Import a module of an optional dependency.

    Args:
        module: Name of the module.
        extra: Extra of this package that installs it; None for a package that no extra installs.

    Raises:
        MissingExtraError: The module is not installed; the text has the ``pip install`` to run.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or module.partition(".")[0] != exc.name.partition(".")[0]:
            raise
        package = _PACKAGES.get(exc.name.partition(".")[0], exc.name)
        wanted = package if extra is None else f"'liftenvelope[{extra}]'"
        text = f"this needs {package}: run pip install {wanted}"
        raise MissingExtraError(text, name=exc.name) from exc


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the advice for an unknown name: the known one that is most like it, or all of them.

    Example:
        >>> nearest("subjet", ["stream", "subject"]), nearest("x", ["stream", "subject"])
        ('did you mean subject?', 'use one of stream, subject')
    """
    from difflib import get_close_matches  # here: the codec imports this module, and needs no advice

    names = sorted(known)
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(names)}"
