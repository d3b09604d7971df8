"""nats-py connections of this package's own programs, which send a login over TLS alone if TLS is wanted.

nats-py begins with TLS only if the server asks for it, also for ``tls://`` URLs. To a server that does not
ask, or to one in between that claims so, it sends the login in plain text.
"""

from __future__ import annotations

from collections.abc import Sequence

import nats.errors
from nats.aio.client import Client

from liftenvelope.nats.link import is_encrypted

__all__ = ["NoTlsError", "new_client"]


class NoTlsError(nats.errors.Error):
    """The server does not use TLS. No login was sent."""

    def __str__(self) -> str:
        return "the server does not use TLS, which the URL or the options require"


class _TlsOnlyClient(Client):
    def _connect_command(self) -> bytes:
        if not is_encrypted(self):  # called again for each reconnect
            raise NoTlsError
        return super()._connect_command()


def new_client(urls: Sequence[str], *, tls: bool = False) -> Client:
    """Return a client that is not connected yet. It fails with :class:`NoTlsError` where TLS is missing.

    Args:
        urls: URLs of the servers. One with ``tls://`` requires TLS of all of them.
        tls: True if TLS is required in any case, for example because certificates are given.
    """
    return _TlsOnlyClient() if tls or any(url.strip().startswith("tls://") for url in urls) else Client()
