"""Certificates of a secured victim, and the TLS clients of attackers by name."""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path
from typing import Final

import trustme

__all__ = ["POLICY", "Certificates"]

#: What the clients of a secured victim may do. Mallory's own stream does not exist.
POLICY: Final = """
p, bystander, *, FetchMetadata
p, bystander, bystander, CreateStream
p, bystander, bystander, FetchPartitionMetadata
p, bystander, bystander, Publish
p, mallory, *, FetchMetadata
p, mallory, mallory, CreateStream
p, mallory, mallory, Publish
p, mallory, mallory, Subscribe
"""


class Certificates:
    """An authority with the files of a server and of the bystander.

    Args:
        folder: Where the files are written.

    Attributes:
        gateway: Names of the server's files, as the gateway's configuration has them.
        bystander: Names of the authority's file and of the bystander's certificate with its key.
    """

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        server = self._ca.issue_cert("127.0.0.1")
        key, cert, ca, client = (folder / f"{name}.pem" for name in ("key", "cert", "ca", "bystander"))
        server.private_key_pem.write_to_path(key)
        server.cert_chain_pems[0].write_to_path(cert)
        self._ca.cert_pem.write_to_path(ca)
        self._issue("bystander").private_key_and_cert_chain_pem.write_to_path(client)
        policy = folder / "policy.csv"
        policy.write_text(POLICY)
        self.gateway: dict[str, object] = {
            "tls_key": str(key),
            "tls_cert": str(cert),
            "tls_client_ca": str(ca),
            "policy_file": str(policy),
        }
        self.bystander = (str(ca), str(client))

    def _issue(self, name: str) -> trustme.LeafCert:
        return self._ca.issue_cert(f"{name}@example.org", common_name=name)

    def client(self, name: str) -> ssl.SSLContext | None:
        """Return the TLS of an attacker; None for one that sends what it likes over TCP."""
        if name == "plain":
            return None
        context = ssl.create_default_context(cadata=self._ca.cert_pem.bytes().decode())
        if name == "foreign":
            trustme.CA().issue_cert("a@example.org", common_name="bystander").configure_cert(context)
        elif name != "anonymous":
            self._issue(name).configure_cert(context)
        if name.startswith("tls"):
            # OpenSSL refuses old versions by default, for the attacker as well.
            context.set_ciphers("ALL:@SECLEVEL=0")
            version = {"tls1.0": ssl.TLSVersion.TLSv1, "tls1.1": ssl.TLSVersion.TLSv1_1}[name]
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                context.minimum_version = context.maximum_version = version
        if name != "no-alpn":
            context.set_alpn_protocols(["http/1.1"] if name == "http1" else ["h2"])
        return context
