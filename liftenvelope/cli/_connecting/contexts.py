"""Contexts of the ``nats`` command: named files with the servers and the login (ADR-21)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from liftenvelope._secrets import without_secrets
from liftenvelope.errors import UsageError

__all__ = ["NatsContext", "context_names", "read_context", "selected_context"]

#: Context of a file that names no server.
_DEFAULT_URL: Final = "nats://127.0.0.1:4222"
#: Largest file to read, in bytes.
_LARGEST: Final = 1_000_000
#: Fields that change how to connect, and that this command can't follow.
_UNSUPPORTED: Final = (
    "nsc",
    "user_jwt",
    "user_seed",
    "socks_proxy",
    "windows_cert_store",
    "windows_cert_match_by",
    "windows_cert_match",
    "windows_ca_certs_match",
)
#: Fields that name files.
_FILES: Final = ("creds", "nkey", "cert", "key", "ca")
#: Logins. The nats command also takes the first of several, but a context with several is a mistake.
_LOGINS: Final = ("user", "creds", "nkey", "token")
#: Schemes by which a value of a context stands for a secret that is elsewhere.
_REFERENCES: Final = ("file://", "env://", "op://", "nsc://")
_TEXTS: Final = (
    "url",
    "user",
    "password",
    "token",
    "creds",
    "nkey",
    "cert",
    "key",
    "ca",
    "jetstream_domain",
    "jetstream_api_prefix",
    "jetstream_event_prefix",
    "inbox_prefix",
)


@dataclass(frozen=True, kw_only=True)
class NatsContext:
    """Settings of a context. Empty texts are not set.

    Attributes:
        name: Name of the context.
        url: URLs of the servers, separated by commas.
        user, password, token: Login.
        creds, nkey: Files with a login: credentials, or the seed of an nkey.
        cert, key, ca: PEM files for TLS: client certificate, its key, and the authorities to trust.
        jetstream_domain, jetstream_api_prefix: Place of JetStream's API.
        jetstream_event_prefix: Prefix of JetStream's events if not ``$JS.EVENT``.
        inbox_prefix: Prefix of reply subjects.
        tls_first: Begin with TLS before the server has said anything.
    """

    name: str
    url: str = _DEFAULT_URL
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    creds: str = ""
    nkey: str = field(default="", repr=False)
    cert: str = ""
    key: str = ""
    ca: str = ""
    jetstream_domain: str = ""
    jetstream_api_prefix: str = ""
    jetstream_event_prefix: str = ""
    inbox_prefix: str = ""
    tls_first: bool = False


def _folder() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(given) if given else Path.home() / ".config") / "nats"
    except RuntimeError as exc:  # such as a user id of a container that /etc/passwd does not list
        raise UsageError("--context must be left out: the user has no home directory") from exc


def context_names() -> list[str]:
    """Return the names of all contexts, sorted. A folder that can't be read has none."""
    try:
        return sorted(path.stem for path in (_folder() / "context").glob("*.json"))
    except (OSError, UsageError):
        return []


def selected_context() -> str:
    """Return the name of the context that ``nats context select`` has chosen; empty if there is none."""
    try:
        with (_folder() / "context.txt").open(encoding="utf-8") as file:
            return file.read(1_000).strip()
    except (OSError, ValueError, UsageError):
        return ""


def read_context(name: str) -> NatsContext:
    """Read a context.

    Raises:
        UsageError: The context does not exist, is malformed, or has a setting that is not supported. The text
            has no values of the file, because some of them are secrets.
    """
    if not name or ".." in name or "/" in name or os.sep in name or "\0" in name:
        raise UsageError(f"--context must be the name of a context, got {without_secrets(name)!r}")
    path = _folder() / "context" / f"{name}.json"
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST))
    except FileNotFoundError:
        known = ", ".join(context_names()) or "none"
        raise UsageError(f"there is no context {name!r}; known contexts: {known}") from None
    except OSError as exc:
        raise UsageError(f"context {name!r} must be a file that can be read: {exc.strerror}") from exc
    except (ValueError, RecursionError):  # its text would show a piece of the file
        raise UsageError(f"context {name!r} must be JSON; look at {path}") from None
    if not isinstance(found, dict):
        raise UsageError(f"context {name!r} must be a JSON object, got {type(found).__name__}")
    return _context(name, found)


def _context(name: str, found: dict[str, Any]) -> NatsContext:
    for one in _TEXTS:
        if not isinstance(found.get(one) or "", str):
            raise UsageError(f"{one} of context {name!r} must be a text, got {type(found[one]).__name__}")
    first = found.get("tls_first")
    if not isinstance(first or False, bool):
        raise UsageError(f"tls_first of context {name!r} must be true or false, got {type(first).__name__}")
    if unsupported := [one for one in _UNSUPPORTED if found.get(one)]:
        text = f"context {name!r} has {unsupported[0]}, which this command does not support"
        raise UsageError(f"{text}: use creds, nkey, token, or user and password")
    kept = {one: found[one] for one in _TEXTS if found.get(one)}
    logins = [one for one in _LOGINS if one in kept]
    if len(logins) > 1:
        raise UsageError(f"context {name!r} must have one login, got {' and '.join(logins)}")
    if bool(kept.get("cert")) != bool(kept.get("key")):
        raise UsageError(f"cert and key of context {name!r} go together: give both or neither")
    for one in (*_FILES, "password", "token"):
        if one in kept:
            kept[one] = _resolved(name, one, kept[one])
    return NatsContext(name=name, tls_first=first is True, **kept)


def _resolved(name: str, field_name: str, value: str) -> str:
    """Return a value of a context, a path with the home directory and variables in place.

    Raises:
        UsageError: The value stands for a secret that another program keeps.
    """
    is_file = field_name in _FILES
    if is_file:
        value = value.removeprefix("file://")
    if value.startswith(_REFERENCES):
        scheme = value.partition("://")[0]
        text = (
            f"{field_name} of context {name!r} is a reference with {scheme}://, which this command does not"
        )
        raise UsageError(f"{text} follow: give {'the path of a file' if is_file else 'the value itself'}")
    return os.path.expandvars(os.path.expanduser(value)) if is_file else value
