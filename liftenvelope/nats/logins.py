"""Logins at nats-server: credentials files, and the errors of refused logins.

nats-py passes the text of ``-ERR`` on in lower or in mixed case, in quotes or without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from liftenvelope.errors import UsageError

__all__ = ["is_refused_login", "login_in", "read_credentials", "refused_login", "with_login_of"]

_BLOCK: Final = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+(\S+)\s+-{3,}END \1-{3,}")
_JWT, _SEED = "NATS USER JWT", "USER NKEY SEED"

#: Parts of the errors: of a wrong or missing login, and of one that has expired or was revoked.
_REFUSALS: Final = (
    "authorization violation",
    "user authentication",
    "authentication timeout",
    "authentication expired",
    "authentication revoked",
)
#: Options of nats-py for a login.
_LOGINS: Final = frozenset({"user", "token", "user_credentials", "nkeys_seed", "nkeys_seed_str"})


def login_in(parts: SplitResult) -> dict[str, Any]:
    """Return the login of a URL as the options ``user`` and ``password``, or ``token``; empty if it has none.

    It is percent-encoded as in other URLs, though nats-py sends what stands there.
    """
    if parts.username is None:
        return {}
    name = unquote(parts.username)
    return {"token": name} if parts.password is None else {"user": name, "password": unquote(parts.password)}


def with_login_of(urls: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of ``nats.connect`` with the login of the URLs, if these have one and the options none.

    nats-py sends the login of a URL to the server of that URL alone. The other servers of its cluster, of
    which that server tells, would refuse a connection that has lost its server.

    Args:
        urls: URLs of the servers. If they have different logins, nats-py sends each server its own.
        options: Options of ``nats.connect``.

    Example:
        >>> with_login_of(["nats://app:secret@n1", "nats://n2"], {"name": "a"})
        {'user': 'app', 'password': 'secret', 'name': 'a'}
    """
    found = (login_in(urlsplit(url if "://" in url else f"nats://{url}")) for url in urls)
    logins = [login for login in found if login]
    if not logins or logins != logins[:1] * len(logins) or not _LOGINS.isdisjoint(options):
        return dict(options)
    return {**logins[0], **options}


def is_refused_login(error: object) -> bool:
    """Return True if an error of nats-server, or its text, refuses a login.

    Example:
        >>> is_refused_login("'Authorization Violation'"), is_refused_login("'Stale Connection'")
        (True, False)
    """
    text = str(error).lower()
    return any(refusal in text for refusal in _REFUSALS)


def refused_login(where: str) -> str:
    """Return the text of our error.

    Args:
        where: Address of the server, without secrets.
    """
    return f"{where} refused the login: check the user and password, the token or the credentials"


def read_credentials(text: str, name: str) -> tuple[str, str]:
    """Return the JWT and the seed of a credentials file.

    nats-py must not get a file without them: it reads on for ever, or fails with a TypeError.

    Args:
        text: Content of the file.
        name: Name of the file, for error messages.

    Raises:
        UsageError: The JWT or the seed is missing.
    """
    blocks = dict(_BLOCK.findall(text))
    if _JWT not in blocks or _SEED not in blocks:
        raise UsageError(
            f"user_credentials must have blocks {_JWT!r} and {_SEED!r}, got {name!r} without them"
        )
    return blocks[_JWT], blocks[_SEED]
