"""A gateway with a policy file, and clients with certificates, for the tests of who may do what."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

import liftenvelope
from liftenvelope.client import Client
from liftenvelope.gateway import Gateway
from liftenvelope.gateway.serving import Serving
from liftenvelope.rpc.aio import Channel
from liftenvelope.rpc.status import RpcError, StatusCode
from tests.integration.certificates import Certificates
from tests.integration.conftest import connect


class PolicedGateway:
    """Gateways with one policy file on one NATS server.

    Args:
        folder: Where certificates and the policy file are written.
        nats_url: The NATS server.
        policy: Text of the policy file.
    """

    def __init__(self, folder: Path, nats_url: str, policy: str) -> None:
        self.certificates = Certificates(folder)
        self.stack = AsyncExitStack()
        self.gateways: list[Gateway] = []
        self._nats_url = nats_url
        self._file = folder / "policy.csv"
        self.set_policy(policy)

    def set_policy(self, text: str) -> None:
        """Replace the policy file."""
        new = self._file.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self._file)

    async def start(self, **options: Any) -> Gateway:
        """Start a gateway; return it."""
        nc = await connect(self._nats_url)
        self.stack.push_async_callback(nc.close)
        tls = Serving(nats_url=self._nats_url, **self.certificates.gateway_config).tls()  # type: ignore[arg-type]
        options = {"broker_ttl": 60.0, **options}  # no test waits for the end of a lease
        gateway = Gateway(nc, tls=tls, policy_file=self._file, **options)
        await self.stack.enter_async_context(gateway)
        self.gateways.append(gateway)
        return gateway

    async def client(self, name: str) -> Client:
        """Return a client whose certificate has that name."""
        addresses = [gateway.address for gateway in self.gateways]
        opened = liftenvelope.connect(addresses, tls=self.certificates.client(name))
        return await self.stack.enter_async_context(opened)

    async def caller(self, name: str, gateway: Gateway | None = None) -> Caller:
        """Return bare calls of a client whose certificate has that name."""
        address = (gateway or self.gateways[0]).address
        channel = await Channel.connect(address, tls=self.certificates.client(name))
        self.stack.push_async_callback(channel.close)
        return Caller(channel)


class Caller:
    """Bare calls over one connection.

    Args:
        channel: The connection.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    async def call(self, method: str, request: Message | bytes) -> bytes:
        """Call a method that has one answer, again while it is unavailable, as clients do.

        On a busy machine a gateway may get no processor time for a whole lease. It refuses calls until it has
        renewed the lease.
        """
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        loop = asyncio.get_running_loop()
        end = loop.time() + 60
        while True:
            try:
                return await self.channel.unary(f"/proto.API/{method}", raw, timeout=60)
            except RpcError as exc:
                if exc.code != StatusCode.UNAVAILABLE or loop.time() > end:
                    raise
            await asyncio.sleep(0.1)


@asynccontextmanager
async def policed_gateway(folder: Path, nats_url: str, policy: str) -> AsyncIterator[PolicedGateway]:
    """Run a gateway with a policy."""
    policed = PolicedGateway(folder, nats_url, policy)
    async with policed.stack:
        await policed.start()
        yield policed
