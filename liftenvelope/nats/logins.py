"""Logins at nats-server: credentials files, and the errors of refused logins.

nats-py passes the text of ``-ERR`` on in lower or in mixed case, in quotes or without.
"""

from __future__ import annotations

import re
from typing import Final

from liftenvelope.errors import UsageError

__all__ = ["is_refused_login", "read_credentials", "refused_login"]

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
