"""Permissions that NATS refuses while a gateway starts.

nats-server does not answer a request that it refuses. It reports the violation to the connection, and nats-py
keeps the last report, with the subject in lower case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftenvelope.errors import PermissionDeniedError
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Refusals"]

_REMEDY: Final = 'docs/operating.md lists the permissions of a gateway under "Permissions on NATS"'


class Refusals:
    """Reads the violations that were reported since this object was made.

    Args:
        nc: The connection.
    """

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._before = nc.last_error

    @property
    def found(self) -> str:
        """Text of the last violation; empty for none. It may concern another user of the connection."""
        return "" if self._nc.last_error is self._before else Link(self._nc).refusal(">")

    def concern(self, subject: str, inbox: str) -> bool:
        """Return whether NATS refuses to publish on a subject, or to subscribe to the inboxes of requests.

        Args:
            subject: The subject.
            inbox: An inbox of the connection.
        """
        if f'publish to "{subject}"'.lower() in self.found.lower():
            return True
        # nats-py subscribes once per connection, perhaps before the start, and the refusal lasts.
        prefix = inbox.rpartition(".")[0]
        return f'subscription to "{prefix}.'.lower() in Link(self._nc).refusal().lower()

    def error(self) -> PermissionDeniedError:
        """Return the error for the last violation."""
        said = str(self._nc.last_error).removeprefix("nats: ")
        return PermissionDeniedError(0, f"NATS refuses the gateway: {said}: {_REMEDY}")
