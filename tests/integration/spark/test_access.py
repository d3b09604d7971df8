"""Spark sources and sinks against the gateway, and over TLS with logins, on real servers, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
import pytest
import trustme

from liftenvelope.errors import LiftEnvelopeError, TransportError
from liftenvelope.spark._options import sink_options, source_options
from liftenvelope.spark._source_cores import BatchSource, StreamingSource
from liftenvelope.spark._writing import write_task
from liftenvelope.spark.errors import OptionError
from liftenvelope.testing import GatewayCluster, run_gateway, run_liftbridge
from tests.integration.bulk_streams import jetstream
from tests.integration.certificates import trusting

TASK = "query:0:0"


class Pki:
    """Certificates of a server and a client, as files."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.ca_file = str(folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.cert, self.key = self._files(self.ca.issue_cert("127.0.0.1"), folder, "server")
        client = self.ca.issue_cert("spark@example.org")
        self.client_cert, self.client_key = self._files(client, folder, "client")
        self.context = trusting(self.ca, client)

    def _files(self, leaf: trustme.LeafCert, folder: Path, name: str) -> tuple[str, str]:
        key, cert = folder / f"{name}.key", folder / f"{name}.pem"
        leaf.private_key_pem.write_to_path(key)
        for pem in leaf.cert_chain_pems:
            pem.write_to_path(cert, append=True)
        return str(cert), str(key)

    @property
    def options(self) -> dict[str, str]:
        """Options of a source or sink."""
        return {
            "tlsCaFile": self.ca_file,
            "tlsCertFile": self.client_cert,
            "tlsKeyFile": self.client_key,
        }


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("tls"))


def there_and_back(format_: str, servers: str, name: str, **given: object) -> None:
    """Rows into a stream and out of it, in a batch and as a stream."""
    once = {"deliveryGuarantee": "effectively-once"}
    subject = {"subject": f"{name}.x"} if format_ == "jetstream" else {}
    sink = sink_options(
        format_, {"servers": servers, "topic": name, **once, **subject, **given}, streaming=True
    )
    batch = pa.record_batch({"value": [b"%d" % i for i in range(100)]})
    assert [write_task(sink, [batch], TASK).duplicates for _ in range(2)] == [0, 100]
    source: dict[str, Any] = {"servers": servers, "subscribe": name, **given}
    whole = BatchSource(source_options(format_, source, streaming=False))
    assert [int(v) for span in whole.spans() for b in whole.read(span) for v in b["value"].to_pylist()] == [
        *range(100)
    ]
    stream = StreamingSource(
        source_options(format_, {**source, "startingOffsets": "earliest"}, streaming=True)
    )
    start = stream.initial()
    end = stream.latest(start, limited=True)
    assert sum(b.num_rows for span in stream.spans(start, end) for b in stream.read(span)) == 100
    stream.close()


@contextmanager
def secured_nats(pki: Pki, name: str) -> Iterator[str]:
    """A server that wants to see a certificate and a password."""
    files = {"cert_file": pki.cert, "key_file": pki.key, "ca_file": pki.ca_file}
    login = {"user": "ann", "password": "s3cret"}
    with jetstream(config={"tls": {**files, "verify": True}, "authorization": login}) as server:

        async def create() -> None:
            nc = await nats.connect(server.url, tls=pki.context, **login)
            await nc.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
            await nc.close()

        asyncio.run(create())
        yield server.address


class TestTls:
    def test_jetstream(self, pki: Pki, name: str) -> None:
        login = {"user": "ann", "password": "s3cret"}
        with secured_nats(pki, name) as address:
            there_and_back("jetstream", address, name, **pki.options, **login)
            with pytest.raises(LiftEnvelopeError):
                there_and_back("jetstream", address, name, **pki.options, user="ann", password="wrong")
            with pytest.raises(TransportError):
                there_and_back("jetstream", address, name, tlsCaFile=pki.ca_file, timeout="2s", **login)

    def test_liftbridge(self, pki: Pki, name: str) -> None:
        config = {
            "tls.key": pki.key,
            "tls.cert": pki.cert,
            "tls.client.auth.enabled": True,
            "tls.client.auth.ca": pki.ca_file,
        }
        with run_liftbridge(config=config, tls=pki.context) as cluster:
            cluster.create_stream(name, optimistic_concurrency=True)
            there_and_back("liftbridge", cluster.addresses[0], name, **pki.options)
            with pytest.raises(LiftEnvelopeError):
                there_and_back("liftbridge", cluster.addresses[0], name, timeout="2s", connectTimeout="1s")

    def test_gateway(self, pki: Pki, name: str) -> None:
        config = {"tls_cert": pki.cert, "tls_key": pki.key, "tls_client_ca": pki.ca_file}
        with run_gateway(config=config, tls=pki.context) as cluster:
            cluster.create_stream(name, optimistic_concurrency=True)
            there_and_back("liftbridge", cluster.addresses[0], name, **pki.options)

    def test_a_file_that_an_executor_has_not(self, pki: Pki) -> None:
        given = {"servers": "127.0.0.1:1", "subscribe": "s", **pki.options, "tlsCaFile": "/nowhere/ca.pem"}
        with pytest.raises(OptionError, match=r"/nowhere/ca\.pem"):
            BatchSource(source_options("liftbridge", given, streaming=False)).spans()


def test_the_gateway(gateway_server: GatewayCluster, name: str) -> None:
    gateway_server.create_stream(name, optimistic_concurrency=True)
    there_and_back("liftbridge", gateway_server.addresses[0], name)
