"""Deletion of groups whose controller has changed, or whose answer is lost."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError
from liftenvelope.group import Coordinator, GroupClient, UnknownGroupError
from liftenvelope.group.calls import GroupCalls

from .play import LONG, PATIENCE, coordinator


def named(nc: Client, name: str, coordinator_id: str) -> Coordinator:
    """A coordinator of this test alone."""
    return coordinator(nc, coordinator_id=coordinator_id, bucket=name, prefix=name, lease=LONG)


async def test_group_is_deleted_although_another_coordinator_controls_it_now(nc: Client, name: str) -> None:
    client = GroupClient(nc, prefix=name, timeout=PATIENCE)
    async with named(nc, name, "one"):
        await client.create_group(name)
        await client.committed(name)  # finds the controller
    async with named(nc, name, "two"):
        found = await GroupClient(nc, prefix=name, timeout=PATIENCE).describe_group(name)
        assert found.controller_id == "two"
        async with named(nc, name, "one"):  # answers again, but does not control the group
            await client.delete_group(name)
            with pytest.raises(UnknownGroupError):
                await client.describe_group(name)


async def test_deletion_whose_answer_is_lost_succeeds(
    nc: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    ask = GroupCalls._ask

    async def ask_and_lose(calls: GroupCalls, subject: str, *others: Any, **options: Any) -> Message:
        answer: Message = await ask(calls, subject, *others, **options)
        if subject.endswith(".DeleteGroup") and not lost:
            lost.append(subject)
            raise CallTimeoutError("the answer was lost")
        return answer

    client = GroupClient(nc, prefix=name, timeout=PATIENCE)
    async with named(nc, name, "one"):
        await client.create_group(name)
        with monkeypatch.context() as patch:
            patch.setattr(GroupCalls, "_ask", ask_and_lose)
            await client.delete_group(name)
        assert lost
        with pytest.raises(UnknownGroupError):
            await client.delete_group(name)
