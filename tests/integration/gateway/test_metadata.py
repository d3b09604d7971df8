"""Metadata of many partitions from the gateway."""

from __future__ import annotations

import asyncio

import liftenvelope
from liftenvelope.gateway import Gateway
from liftenvelope.testing import run_nats_server
from tests.conformance.actions import PATIENCE
from tests.integration.conftest import connect


async def test_metadata_of_many_partitions_tells_their_watermarks(name: str) -> None:
    partitions = 300  # more than JetStream lists in one page
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with (
            Gateway(nc, ack_timeout=60.0) as gateway,
            liftenvelope.connect([gateway.address], timeout=PATIENCE) as client,
        ):
            await client.create_stream(name, name, partitions=partitions)
            published = {0: 3, 7: 1, 255: 2, 256: 4, 299: 1}
            for partition, count in published.items():
                for _ in range(count):
                    await client.publish(name, b"x", partition=partition)
            expected = {number: published.get(number, 0) - 1 for number in range(partitions)}

            async def watermarks() -> dict[int, int]:
                metadata = await client.fetch_metadata()
                found = metadata.streams[name].partitions
                return {number: partition.high_watermark for number, partition in found.items()}

            async with asyncio.timeout(PATIENCE):
                while await watermarks() != expected:  # it may be a second old
                    await asyncio.sleep(0.05)
            # While JetStream does not answer, the rest of the metadata is there.
            server.kill()
            assert await watermarks() == expected
            server.start()
        await nc.close()
