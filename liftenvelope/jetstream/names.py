"""Checks of JetStream names and subjects, made before anything is sent."""

from __future__ import annotations

import re
from typing import Final

from liftenvelope._checks import about, as_full_text
from liftenvelope.errors import UsageError

__all__ = [
    "check_consumer_name",
    "check_domain",
    "check_filter",
    "check_group",
    "check_prefix",
    "check_stream_name",
]

# White space and control characters would break the protocol line that contains the subject.
_ODD: Final = re.compile(r"[\s\x00-\x1f\x7f]")
# Characters special to file systems or subjects: names become directories and subject tokens.
_RESERVED: Final = re.compile(r"[.*>/\\]")
_GROUP: Final = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
#: Server limit in bytes.
_LONGEST: Final = 255


def _check_text(name: str, value: object) -> str:
    text = as_full_text(name, value)
    if _ODD.search(text):
        raise about(
            UsageError(f"{name} must not have white space or a control character, got {text!r}"), name
        )
    return text


def _check_name(name: str, value: object) -> str:
    text = _check_text(name, value)
    if found := _RESERVED.search(text):
        raise about(UsageError(f"{name} must not have a {found[0]!r}, got {text!r}"), name)
    if (size := len(text.encode())) > _LONGEST:
        shown = f"{text[:40]!r}..."
        raise about(UsageError(f"{name} must be at most {_LONGEST} bytes, got {size}: {shown}"), name)
    return text


def check_stream_name(name: str) -> str:
    """Return the name if it is a valid stream name.

    Raises:
        UsageError: The name is empty, is longer than 255 bytes, or has a dot, wildcard, slash or white space.
    """
    return _check_name("stream name", name)


def check_consumer_name(name: str) -> str:
    """Return the name if it is a valid consumer name.

    Raises:
        UsageError: The name is empty, is longer than 255 bytes, or has a dot, wildcard, slash or white space.
    """
    return _check_name("consumer name", name)


def check_domain(domain: str) -> str:
    """Return the name if it is a valid JetStream domain.

    Raises:
        UsageError: The name is empty, is longer than 255 bytes, or has a dot, wildcard, slash or white space.
    """
    return _check_name("domain", domain)


def check_group(group: str) -> str:
    """Return the name if it is a valid priority group: 1 to 16 letters, digits, ``/``, ``_``, ``=`` or ``-``.

    Raises:
        UsageError: The name is not valid.
    """
    if not _GROUP.fullmatch(_check_text("priority group", group)):
        raise UsageError(
            f"priority group must be 1 to 16 letters, digits, slashes, '_', '=' or '-', got {group!r}"
        )
    return group


def check_filter(subject: str) -> str:
    """Return the subject if it is a valid filter; wildcards are allowed.

    Raises:
        UsageError: The subject is empty, has an empty token or white space, or ``>`` before the last token.
    """
    tokens = _check_text("subject", subject).split(".")
    if "" in tokens:
        raise UsageError(f"subject must not have an empty token, got {subject!r}")
    if ">" in tokens[:-1]:
        raise UsageError(f"subject must have '>' at its end only, got {subject!r}")
    return subject


def check_prefix(prefix: str) -> str:
    """Return an API prefix without its trailing dot, if requests can be sent there.

    Raises:
        UsageError: The prefix is empty, or has an empty token, a wildcard or white space.
    """
    bare = check_filter(_check_text("api_prefix", prefix).removesuffix("."))
    if "*" in bare.split(".") or ">" in bare.split("."):
        raise UsageError(f"api_prefix must not have a wildcard, got {prefix!r}")
    return bare
