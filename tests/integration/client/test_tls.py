"""TLS and mTLS with a real Liftbridge server, and brokers whose certificates have another name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import trustme

import liftenvelope
from liftenvelope import bulk
from liftenvelope.bulk import Access
from liftenvelope.errors import CallTimeoutError, TransportError
from liftenvelope.testing import LiftbridgeCluster, run_liftbridge
from tests.integration.certificates import Certificates, trusting


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def ca(certificates: Certificates) -> trustme.CA:
    return certificates.ca


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[LiftbridgeCluster]:
    """A server that speaks TLS, and wants to see a certificate of its clients."""
    with run_liftbridge(config=certificates.liftbridge_config, tls=certificates.client("test")) as cluster:
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
    with pytest.raises((TransportError, CallTimeoutError)):  # the latter if the last attempt was cut short
        async with liftenvelope.connect(secured.addresses, tls=trusting(ca), timeout=5.0):
            pytest.fail("a client without a certificate was let in")


async def test_a_server_that_is_not_trusted(secured: LiftbridgeCluster) -> None:
    with pytest.raises(TransportError, match="certificate"):
        async with liftenvelope.connect(secured.addresses, tls=True, timeout=5.0):
            pytest.fail("a server that nobody vouches for was believed")


async def test_plain_tcp_to_a_tls_server(secured: LiftbridgeCluster) -> None:
    with pytest.raises((TransportError, CallTimeoutError)):  # the latter if the last attempt was cut short
        async with liftenvelope.connect(secured.addresses, timeout=5.0):
            pytest.fail("plain TCP worked where TLS is spoken")


NAME = "broker.example.org"


@pytest.fixture(scope="module")
def named(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeCluster]:
    """A server that advertises 127.0.0.1 and has a certificate for a DNS name alone."""
    pem = tmp_path_factory.mktemp("named") / "server.pem"
    ca.issue_cert(NAME).private_key_and_cert_chain_pem.write_to_path(pem)
    careless = trusting(ca)
    careless.check_hostname = False
    with run_liftbridge(config={"tls.key": str(pem), "tls.cert": str(pem)}, tls=careless) as cluster:
        cluster.create_stream("named")
        yield cluster


@pytest.mark.parametrize("by_address", [False, True])
async def test_server_name_of_the_certificate(
    ca: trustme.CA, named: LiftbridgeCluster, by_address: bool
) -> None:
    names = dict.fromkeys(named.addresses, NAME) if by_address else NAME
    async with liftenvelope.connect(named.addresses, tls=trusting(ca), tls_server_name=names) as client:
        assert await client.publish("named", b"x") is not None


def test_server_name_of_the_certificate_blocking_and_bulk(ca: trustme.CA, named: LiftbridgeCluster) -> None:
    options = {"tls": trusting(ca), "tls_server_name": NAME}
    with liftenvelope.connect_blocking(named.addresses, **options) as client:  # type: ignore[arg-type]
        assert client.publish("named", b"x") is not None
        assert bulk.read(client, "named").read_all().num_rows > 0
    access = Access(tls=trusting(ca), tls_server_name={named.addresses[0]: NAME})
    assert bulk.read(f"liftbridge://{named.addresses[0]}", "named", access=access).read_all().num_rows > 0


@pytest.mark.parametrize("names", [None, "other.example.org", {"127.0.0.1:1": NAME}])
async def test_another_server_name_than_that_of_the_certificate(
    ca: trustme.CA, named: LiftbridgeCluster, names: str | dict[str, str] | None
) -> None:
    with pytest.raises(TransportError, match=r"not valid for|mismatch"):
        async with liftenvelope.connect(
            named.addresses, tls=trusting(ca), tls_server_name=names, timeout=5.0
        ):
            pytest.fail("a server of another name was believed")


async def test_advertised_host_is_verified_if_the_address_is_mapped(
    ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pem = tmp_path_factory.mktemp("mapped") / "server.pem"
    ca.issue_cert(NAME).private_key_and_cert_chain_pem.write_to_path(pem)
    careless = trusting(ca)
    careless.check_hostname = False
    config = {"tls.key": str(pem), "tls.cert": str(pem), "host": NAME}  # advertised with port 9292
    with run_liftbridge(config=config, tls=careless) as cluster:
        advertised = f"{NAME}:9292"
        mapped = {advertised: cluster.addresses[0]}
        async with liftenvelope.connect(advertised, tls=trusting(ca), address_map=mapped) as client:
            await client.create_stream("mapped", "mapped")
            assert await client.publish("mapped", b"x") is not None
            assert (await client.fetch_metadata()).addresses == (advertised,)
        access = Access(tls=trusting(ca), address_map=mapped)
        table = await asyncio.to_thread(
            lambda: bulk.read(f"liftbridge://{advertised}", "mapped", access=access).read_all()
        )
        assert table.num_rows == 1
