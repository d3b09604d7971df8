"""TLS contexts of clients from PEM files."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from liftenvelope.rpc.tls_files import client_context


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Files of an authority, of a certificate of it, and of the certificate's key."""
    authority = trustme.CA()
    leaf = authority.issue_cert("client@example.org")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    return {path.stem: str(path) for path in tmp_path.iterdir()}


def test_authority_replaces_those_of_the_system(files: dict[str, str]) -> None:
    assert client_context(files["ca"], None, None).cert_store_stats()["x509_ca"] == 1


def test_key_may_be_in_the_file_of_the_certificate(files: dict[str, str]) -> None:
    client_context(None, files["cert"], files["key"])
    client_context(None, files["both"], None)
    with pytest.raises(OSError, match="PEM"):
        client_context(None, files["cert"], None)


def test_encrypted_key_is_refused_without_asking_for_its_password(files: dict[str, str]) -> None:
    key = serialization.load_pem_private_key(Path(files["key"]).read_bytes(), None)
    secured = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    Path(files["key"]).write_bytes(secured)
    with pytest.raises(OSError, match="the key is encrypted: decrypt it first"):
        client_context(None, files["cert"], files["key"])
