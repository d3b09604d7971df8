"""TLS contexts from PEM files."""

from __future__ import annotations

import ssl

__all__ = ["client_context", "no_password"]


def client_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Return a TLS context for connections to servers.

    Args:
        ca: File with the authority of the servers' certificates; None for those of the system.
        cert: File with the client certificate; None for none.
        key: File with the key of that certificate; None if the key is in ``cert``.

    Raises:
        OSError: A file can't be read or is not PEM, the certificate and the key do not belong together, the
            key is encrypted, or a path has a NUL.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key, password=no_password)
    except ValueError as exc:
        raise OSError(str(exc)) from exc
    return context


def no_password() -> str:
    """Refuse an encrypted key: OpenSSL would ask for its password on the terminal."""
    raise OSError("the key is encrypted: decrypt it first, and protect the file by its mode")
