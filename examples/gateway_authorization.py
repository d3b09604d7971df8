"""Run a gateway with mutual TLS and a policy file.

trustme makes the certificates for this run. Yours are files: ``liftenvelope serve --tls-cert server.pem
--tls-key server.key --tls-client-ca clients.pem --policy policy.csv``.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from pathlib import Path

import nats
import trustme

import liftenvelope
from liftenvelope.errors import PermissionDeniedError
from liftenvelope.gateway import Gateway
from liftenvelope.testing import run_nats_server

POLICY = """
p, writer, *,      FetchMetadata
p, writer, orders, CreateStream
p, writer, orders, Publish
p, reader, *,      FetchMetadata
p, reader, orders, Subscribe
p, reader, orders, FetchPartitionMetadata
"""


def server_side(authority: trustme.CA) -> ssl.SSLContext:
    """Return the TLS context of the gateway, which asks every client for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_side(authority: trustme.CA, name: str) -> ssl.SSLContext:
    """Return the TLS context of a client, identified by the common name of its certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert(f"{name}@example.org", common_name=name).configure_cert(context)
    return context


async def main(policy: Path) -> None:
    authority = trustme.CA()
    async with run_nats_server(jetstream=True) as server:
        nc = await nats.connect(server.url)
        async with Gateway(nc, tls=server_side(authority), policy_file=policy) as gateway:
            writer = liftenvelope.connect([gateway.address], tls=client_side(authority, "writer"))
            reader = liftenvelope.connect([gateway.address], tls=client_side(authority, "reader"))
            async with writer, reader:
                await writer.create_stream("orders", "orders")
                ack = await writer.publish("orders", b"two of them", key=b"customer-7")
                print("written:", ack.offset if ack is not None else None)
                async with reader.subscribe("orders", start="earliest", stop="latest") as messages:
                    print("read:", [message.value async for message in messages])
                try:
                    await reader.publish("orders", b"one more")
                except PermissionDeniedError as exc:
                    print("refused:", exc)
        await nc.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "policy.csv")
        file.write_text(POLICY)
        asyncio.run(main(file))
