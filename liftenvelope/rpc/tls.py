"""TLS for gRPC: both sides must negotiate HTTP/2 in the handshake (ALPN, RFC 9113, 3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftenvelope._checks import about
from liftenvelope.errors import TransportError, UsageError, UsageTypeError

if TYPE_CHECKING:
    import ssl

__all__ = ["check_protocol", "check_server_name", "offer_http2"]


def offer_http2(context: ssl.SSLContext) -> None:
    """Set a context's ALPN to HTTP/2 only. The context is changed: use one for gRPC alone."""
    context.set_alpn_protocols(["h2"])


def check_protocol(connection: ssl.SSLObject | ssl.SSLSocket, peer: object) -> None:
    """Check that the peer has negotiated HTTP/2.

    Raises:
        TransportError: The peer has not negotiated HTTP/2.
    """
    if (chosen := connection.selected_alpn_protocol()) != "h2":
        raise TransportError(f"{peer} does not speak HTTP/2 over TLS (ALPN chose {chosen!r})")


def check_server_name(name: object, argument: str = "tls_server_name") -> str:
    """Check a server name for certificate verification; return it.

    Args:
        name: The server name.
        argument: Name of the argument, for the text of errors. Default ``tls_server_name``.

    Raises:
        UsageError: The name is not a DNS name or IP address.
        UsageTypeError: The name is not a str.
    """
    if not isinstance(name, str):
        raise UsageTypeError(f"{argument} must be a str, got {type(name).__name__}")
    try:
        name.encode("idna")
    except UnicodeError as exc:
        raise about(
            UsageError(f"{argument} must be a DNS name or an IP address, got {name!r}"), argument
        ) from exc
    if not name or name.startswith(".") or not name.isprintable() or {" ", "/"} & set(name):
        raise about(UsageError(f"{argument} must be a DNS name or an IP address, got {name!r}"), argument)
    return name
