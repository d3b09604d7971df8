"""Refused logins: how nats-server's errors tell them, and what the user reads.

nats-py passes the text of ``-ERR`` on in lower or in mixed case, in quotes or without.
"""

from __future__ import annotations

from typing import Final

__all__ = ["is_refused_login", "refused_login"]

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
