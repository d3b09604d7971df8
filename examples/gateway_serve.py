"""Serve Liftbridge's API with two gateways on one NATS server, and stop one of them."""

from __future__ import annotations

import asyncio

import nats

import liftenvelope
from liftenvelope.gateway import Gateway
from liftenvelope.nats import AckInbox
from liftenvelope.testing import run_nats_server


async def main() -> None:
    async with run_nats_server(jetstream=True) as server:
        nc, other = await nats.connect(server.url), await nats.connect(server.url)
        first = await Gateway(nc, id="first").start()
        second = await Gateway(other, id="second").start()
        async with liftenvelope.connect([first.address, second.address]) as client:
            await client.create_stream("orders", "orders", partitions=4)
            metadata = await client.fetch_metadata()
            leaders = [p.leader for p in metadata.streams["orders"].partitions.values()]
            print("brokers:", *sorted(metadata.brokers))
            print("led by:", *leaders)

            # Envelopes go straight to NATS; a gateway acks them once they are stored.
            async with AckInbox(nc) as inbox:
                ack = await inbox.publish("orders.1", b"by NATS", key=b"customer-7")
            print("acked:", ack.stream, "offset", ack.offset)
            await client.publish("orders", b"by gRPC", partition=1)

            # The other gateway serves everything that this one did.
            await first.close()
            async with client.subscribe("orders", partition=1, start="earliest", stop="latest") as messages:
                print("read:", [message.value async for message in messages])
        await second.close()
        await nc.close()
        await other.close()


if __name__ == "__main__":
    asyncio.run(main())
