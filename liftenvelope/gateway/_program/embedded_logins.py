"""Logins of the nats-server that the gateway starts: one for the gateway, one for publishers of raw messages.

The gateway's user has all permissions. Publishers may publish and subscribe, except on the subjects that
JetStream, the gateways and the group coordinators use internally: see ``_DENIED``. If the server is open to
publishers, clients without a login are publishers.

Passwords are random. They are stored in the data folder in files of mode 0600, each of which holds a URL to
connect with: ``gateway.url`` and ``publisher.url``. Passwords persist over restarts. A password whose file
was deleted is replaced by a new one. No password ever appears on a command line.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from liftenvelope import _wire as w

__all__ = ["Logins", "write_private"]

_GATEWAY: Final = "gateway"
_PUBLISHER: Final = "publisher"
#: Inbox prefix of the gateway's own connection. Publishers may not read answers meant for the gateway.
_GATEWAY_INBOXES: Final = "_INBOX.gateway"
#: First tokens with ``$`` that nats-server, its clients and gateways use. A permission can't name the
#: beginning of a token.
_DOLLARS: Final = ("$JS.", "$KV.", "$O.", "$SRV.", "$SYS.")
#: Subjects that publishers may neither publish nor subscribe to, those that clients of the gateway may not
#: name. JetStream's API and the records can delete and change every stream, and calls to the group
#: coordinators can remove members from groups.
_DENIED: Final = tuple(
    f"{beginning}>"
    for internal in (*w.INTERNAL_SUBJECTS, f"{_GATEWAY_INBOXES}.")
    for beginning in (_DOLLARS if internal == "$" else (internal,))
)


class Logins:
    """The two users of the server, with their passwords.

    Args:
        folder: Data folder. It must exist.
        open_to_publishers: True if clients without a login are publishers.
    """

    def __init__(self, folder: Path, *, open_to_publishers: bool) -> None:
        self._files = {user: folder / f"{user}.url" for user in (_GATEWAY, _PUBLISHER)}
        self._passwords = {
            user: _known(path) or secrets.token_urlsafe(32) for user, path in self._files.items()
        }
        self._is_open = open_to_publishers

    @property
    def gateway(self) -> dict[str, str]:
        """Arguments of ``nats.connect`` for the gateway's own connection."""
        password = self._passwords[_GATEWAY]
        return {"user": _GATEWAY, "password": password, "inbox_prefix": _GATEWAY_INBOXES}

    @property
    def configuration(self) -> dict[str, Any]:
        """Users and permissions for the server's configuration."""
        denied = {"deny": list(_DENIED)}
        users: list[dict[str, Any]] = [
            {"user": name, "password": word} for name, word in self._passwords.items()
        ]
        users[-1]["permissions"] = {"publish": denied, "subscribe": denied}
        found: dict[str, Any] = {"authorization": {"users": users}}
        if self._is_open:
            found["no_auth_user"] = _PUBLISHER
        return found

    def write(self, url: str) -> None:
        """Write the URL files of both users.

        Args:
            url: URL of the server, as ``nats://host:port``.
        """
        scheme, _, address = url.partition("://")
        for user, path in self._files.items():
            write_private(path, f"{scheme}://{user}:{self._passwords[user]}@{address}\n")


def _known(path: Path) -> str | None:
    try:
        return urlsplit(path.read_text("utf-8").strip()).password
    except (OSError, ValueError):
        return None


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read; replace an existing one atomically."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
