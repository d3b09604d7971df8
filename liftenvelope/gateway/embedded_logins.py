"""Logins of the nats-server that the gateway starts: one for the gateway, one for publishers of raw messages.

The gateway's user may do everything. Publishers may publish and subscribe, but not reach what JetStream, the
gateways and the group coordinators keep and say among themselves: see ``_INTERNAL``. Unless the server is
closed to them, clients that do not log in are publishers.

Passwords are random. They are kept in the data folder in files of mode 0600, each a URL to connect with:
``gateway.url`` and ``publisher.url``. They stay the same over restarts; a new one is made for a file that was
deleted. No password is ever on a command line.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

__all__ = ["Logins", "write_private"]

_GATEWAY: Final = "gateway"
_PUBLISHER: Final = "publisher"
#: Prefix of the inboxes of the gateway's own connection, so that publishers can't read answers meant for it.
_GATEWAY_INBOXES: Final = "_INBOX.gateway"
#: Subjects closed to publishers, both ways. JetStream's API and records can delete and change every stream,
#: ``liftenvelope.groups`` can throw members out of groups.
_INTERNAL: Final = (
    "$JS.>",
    "$KV.>",
    "$O.>",
    "$SRV.>",
    "$SYS.>",
    "_lift.>",
    "liftenvelope.groups.>",
    f"{_GATEWAY_INBOXES}.>",
)


class Logins:
    """The two users of the server.

    Args:
        folder: Data folder. It must exist.
        open_to_publishers: Whether clients that do not log in are publishers.
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
        """Part of the server's configuration."""
        denied = {"deny": list(_INTERNAL)}
        users: list[dict[str, Any]] = [
            {"user": name, "password": word} for name, word in self._passwords.items()
        ]
        users[-1]["permissions"] = {"publish": denied, "subscribe": denied}
        found: dict[str, Any] = {"authorization": {"users": users}}
        if self._is_open:
            found["no_auth_user"] = _PUBLISHER
        return found

    def write(self, url: str) -> None:
        """Write the files.

        Args:
            url: Where the server listens, as ``nats://host:port``.
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
    """Write a file that only this user can read, in place of one that may be there."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
