"""A topic in another JetStream domain than that of the members and the coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.group import (
    GroupClient,
    GroupConsumer,
    JetStreamTopic,
    JetStreamTopicSource,
    TopicPartition,
)
from liftenvelope.jetstream import JetStream, StreamConfig
from tests.integration.conftest import connect
from tests.integration.domains import hub_and_leaf

from .play import LONG, PATIENCE, coordinator, quiet, take


async def test_group_at_a_leaf_node_reads_a_topic_of_the_hub(tmp_path: Path, name: str) -> None:
    with hub_and_leaf(tmp_path) as (_, leaf):
        nc = await connect(leaf.url)
        async with JetStream(nc, domain="hub", timeout=PATIENCE) as js:
            async with asyncio.timeout(PATIENCE):
                while True:  # until the leaf node is connected to the hub
                    try:
                        await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.*",)), timeout=1)
                        break
                    except LiftEnvelopeError:
                        await asyncio.sleep(0.05)
            for number in range(4):
                await js.publish(f"{name}.0", b"%d" % number)
            topic = JetStreamTopicSource(js, JetStreamTopic.of_stream(name, [f"{name}.0"]))
            async with coordinator(nc, sources=[topic], lease=LONG):
                async with GroupConsumer(
                    nc, name, topic, auto_offset="earliest", timeout=PATIENCE, on_event=quiet
                ) as consumer:
                    assert await take(consumer, 4) == [b"0", b"1", b"2", b"3"]
                    assert await consumer.lag() == {TopicPartition(name, 0): 0}
                    await consumer.commit()
                client = GroupClient(nc, timeout=PATIENCE)
                assert await client.rewind(name, {(name, 0): 100}) == {TopicPartition(name, 0): 4}
        await nc.close()
