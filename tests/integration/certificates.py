"""Certificates for servers and clients of tests, from one authority of their own."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


def trusting(ca: trustme.CA, own: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """TLS for a client that trusts an authority, with a certificate of its own or without."""
    # Without an authority, it would read all of the system's: 20 ms.
    context = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode())
    if own is not None:
        own.configure_cert(context)
    return context


def client_tls(ca: trustme.CA, name: str | None) -> ssl.SSLContext:
    """TLS for a client whose certificate has the common name ``name``, or no common name."""
    return trusting(ca, ca.issue_cert("client@example.org", common_name=name))


def server_tls(ca: trustme.CA) -> ssl.SSLContext:
    """TLS for a server on 127.0.0.1 that wants certificates of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class Certificates:
    """An authority, the files of a server on 127.0.0.1, and contexts for clients.

    Args:
        folder: Where the files are written.
    """

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self._files = {name: folder / f"{name}.pem" for name in ("key", "cert", "ca")}
        leaf = self.ca.issue_cert("127.0.0.1")
        leaf.private_key_pem.write_to_path(self._files["key"])
        for pem in leaf.cert_chain_pems:
            pem.write_to_path(self._files["cert"], append=True)
        self.ca.cert_pem.write_to_path(self._files["ca"])

    @property
    def liftbridge_config(self) -> dict[str, object]:
        """Configuration of a Liftbridge server that wants certificates of its clients."""
        return {
            "tls.key": str(self._files["key"]),
            "tls.cert": str(self._files["cert"]),
            "tls.client.auth.enabled": True,
            "tls.client.auth.ca": str(self._files["ca"]),
        }

    @property
    def gateway_config(self) -> dict[str, object]:
        """Configuration of a gateway that wants certificates of its clients."""
        return {
            "tls_key": str(self._files["key"]),
            "tls_cert": str(self._files["cert"]),
            "tls_client_ca": str(self._files["ca"]),
        }

    def client(self, name: str | None) -> ssl.SSLContext:
        """TLS for a client whose certificate has the common name ``name``, or no common name."""
        return client_tls(self.ca, name)

    def anonymous(self) -> ssl.SSLContext:
        """TLS for a client without a certificate."""
        return trusting(self.ca)
