"""A large group's coordinator on a real server: its event loop stays free while partitions are assigned."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from nats.aio.client import Client

from liftenvelope.group import Phase, TopicSpec
from liftenvelope.group._controller.host import GroupHost
from liftenvelope.group.directory import Definition
from liftenvelope.group.membership import Beat, Group, Registration

from .play import LONG, coordinator

TOPICS = tuple(TopicSpec(f"t{number}", 100) for number in range(20))


def join(group: Group, now: float) -> None:
    """Let 40 members join, and give back what the first ones got before the others came."""
    for _ in range(2):
        for number in range(40):
            known = group.state.members.get(f"m{number:02}")
            request = Registration(
                consumer_id=f"m{number:02}",
                client_id="c",
                topics=tuple(Random(number).sample(TOPICS, 5)),
                generation=known.generation if known is not None else 0,
            )
            group.register(request, now)


async def test_heartbeats_are_answered_while_partitions_are_assigned(
    nc: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftenvelope.group._controller.host._LONGEST_TURN", 0.0)
    beats: list[Beat] = []

    async def beat(host: GroupHost) -> None:
        while host.group.state.phase is not Phase.STABLE:
            if host.group.is_due:
                beats.append(host.heartbeat("m00", 0, "c"))
            await asyncio.sleep(0)

    async with coordinator(nc, lease=LONG) as running:
        await running.directory.create(Definition(name=name, session_timeout=LONG))
        host = await running.directory.host(name)
        beating = asyncio.create_task(beat(host))
        await host.run(join)
        await beating
        members = host.group.state.members.values()
        assert sum(len(member.assignment) for member in members) == 2_000
        assert {member.generation for member in members} == {host.group.state.generation}
    assert len(beats) >= 2_000 // 256  # the assignor pauses after every 256 partitions
    assert all(beat.rebalancing for beat in beats)
