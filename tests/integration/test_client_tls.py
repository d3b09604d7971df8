"""TLS and mTLS with a real Liftbridge server. IPv6 is tested with the transport."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import liftenvelope
from liftenvelope.errors import TransportError
from liftenvelope.testing import LiftbridgeCluster, run_liftbridge


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def trusting(ca: trustme.CA, own: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if own is not None:
        own.configure_cert(context)
    return context


@pytest.fixture(scope="module")
def secured(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeCluster]:
    """A server that speaks TLS, and wants to see a certificate of its clients."""
    folder: Path = tmp_path_factory.mktemp("tls")
    leaf = ca.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(folder / "key.pem")
    for pem in leaf.cert_chain_pems:
        pem.write_to_path(folder / "cert.pem", append=True)
    ca.cert_pem.write_to_path(folder / "ca.pem")
    config = {
        "tls.key": str(folder / "key.pem"),
        "tls.cert": str(folder / "cert.pem"),
        "tls.client.auth.enabled": True,
        "tls.client.auth.ca": str(folder / "ca.pem"),
    }
    with run_liftbridge(config=config, tls=trusting(ca, ca.issue_cert("test@example.org"))) as cluster:
        yield cluster


async def test_all_of_it_over_mtls(ca: trustme.CA, secured: LiftbridgeCluster) -> None:
    tls = trusting(ca, ca.issue_cert("app@example.org"))
    async with liftenvelope.connect(secured.addresses, tls=tls) as client:
        await client.create_stream("secret", "secret")
        sent = [str(number).encode() for number in range(300)]
        summary = await client.publish_many("secret", sent)
        assert summary.acked == 300
        async with client.subscribe("secret", start="earliest", stop="latest") as messages:
            assert [message.value async for message in messages] == sent


def test_blocking_over_mtls(ca: trustme.CA, secured: LiftbridgeCluster) -> None:
    tls = trusting(ca, ca.issue_cert("app@example.org"))
    with liftenvelope.connect_blocking(secured.addresses, tls=tls) as client:
        assert client.fetch_metadata().addresses == tuple(secured.addresses)


async def test_without_a_certificate(ca: trustme.CA, secured: LiftbridgeCluster) -> None:
    with pytest.raises(TransportError):
        async with liftenvelope.connect(secured.addresses, tls=trusting(ca), timeout=1.0):
            pytest.fail("a client without a certificate was let in")


async def test_a_server_that_is_not_trusted(secured: LiftbridgeCluster) -> None:
    with pytest.raises(TransportError, match="certificate"):
        async with liftenvelope.connect(secured.addresses, tls=True, timeout=5.0):
            pytest.fail("a server that nobody vouches for was believed")


async def test_plain_tcp_to_a_tls_server(secured: LiftbridgeCluster) -> None:
    with pytest.raises(TransportError):
        async with liftenvelope.connect(secured.addresses, timeout=1.0):
            pytest.fail("plain TCP worked where TLS is spoken")
