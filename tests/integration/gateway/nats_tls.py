"""Configuration of NATS servers with TLS."""

from __future__ import annotations

from typing import Any

from tests.integration.certificates import Certificates


def nats_tls(certificates: Certificates) -> dict[str, Any]:
    """Return the configuration of a NATS server that wants client certificates."""
    files = certificates.gateway_config
    return {
        "tls": {
            "cert_file": files["tls_cert"],
            "key_file": files["tls_key"],
            "ca_file": files["tls_client_ca"],
            "verify": True,
        }
    }
