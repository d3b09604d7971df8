"""Metadata of many partitions from the gateway."""

from __future__ import annotations

import asyncio

import liftenvelope
from liftenvelope.gateway import Gateway
from liftenvelope.testing import run_nats_server
from tests.conformance.actions import PATIENCE
from tests.integration.conftest import connect, until


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


async def test_metadata_of_many_partitions_tells_each_change_at_once(name: str) -> None:
    """One answer serves all calls of a second, but none after a change."""
    with run_nats_server(jetstream=True) as server:
        nc = await connect(server.url)
        async with (
            Gateway(nc, ack_timeout=60.0) as gateway,
            liftenvelope.connect([gateway.address], timeout=PATIENCE) as client,
        ):
            await client.create_stream(name, name, partitions=70)
            for _ in range(3):
                other = f"{name}-other"
                await client.create_stream(other, other)
                assert set((await client.fetch_metadata()).streams) >= {name, other}
                await client.pause_stream(name, partitions=[69])
                assert (await client.fetch_metadata()).streams[name].partitions[69].paused
                await client.publish(name, b"resumes it", partition=69)
                assert not (await client.fetch_metadata()).streams[name].partitions[69].paused
                await client.delete_stream(other)
                assert other not in (await client.fetch_metadata()).streams
        await nc.close()


async def test_metadata_of_many_partitions_names_a_gateway_that_has_joined(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        nc, other = await connect(server.url), await connect(server.url)
        async with (
            Gateway(nc, broker_ttl=60.0) as gateway,
            liftenvelope.connect([gateway.address], timeout=PATIENCE) as client,
        ):
            await client.create_stream(name, name, partitions=70)
            assert len((await client.fetch_metadata()).brokers) == 1
            async with Gateway(other, broker_ttl=60.0):
                assert gateway._running is not None
                alive = gateway._running.core.brokers.alive
                await until(lambda: len(alive) == 2)
                metadata = await client.fetch_metadata()
                assert len(metadata.brokers) == 2
                assert (
                    len({partition.leader for partition in metadata.streams[name].partitions.values()}) == 2
                )
        await nc.close()
        await other.close()
