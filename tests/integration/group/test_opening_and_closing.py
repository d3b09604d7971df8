"""Errors of members that can't join, and of those that lose their partitions before they close."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client

from liftenvelope.errors import CallTimeoutError, GroupError, TransportError
from liftenvelope.group import (
    CommitFailed,
    ConsumerIdInUseError,
    GroupEvent,
    LeaveFailed,
    MemberFenced,
    RebalancingError,
    TopicPartition,
    UnknownMemberError,
)
from liftenvelope.testing import NatsServer
from tests.integration.conftest import connect

from .play import LONG, PATIENCE, Play, coordinator, take


async def text_of_timeout(play: Play, name: str, refusal: type[GroupError]) -> str:
    """Open a member that is refused until its timeout is over, and return the error's text."""
    timeout = 0.5
    while True:
        consumer = play.consumer(name, timeout=timeout)
        with pytest.raises(CallTimeoutError) as caught:
            await consumer.open()
        if type(consumer._membership.refusal) is refusal:
            return str(caught.value)
        timeout *= 2  # the machine is busy: no answer came in time


async def test_error_of_open_names_the_consumer_id_that_is_in_use(play: Play) -> None:
    async with play.consumer("a"):
        text = await text_of_timeout(play, "a", ConsumerIdInUseError)
    assert "has another client with consumer_id 'a'" in text
    assert "coordinator is running" not in text


async def test_error_of_open_names_a_member_that_keeps_its_partitions(play: Play) -> None:
    may_go = asyncio.Event()

    async def revoked(_: list[TopicPartition]) -> None:
        await may_go.wait()

    async with play.consumer("a", on_revoked=revoked):
        text = await text_of_timeout(play, "b", RebalancingError)
        may_go.set()
    assert "another member has not given its partitions back yet" in text


@pytest.mark.parametrize("is_handled", [False, True])
async def test_close_after_the_session_has_ended_tells_of_uncommitted_messages(
    nc: Client, name: str, is_handled: bool
) -> None:
    """The loss of the partitions is noticed just before, or has been handled already."""
    is_over = asyncio.Event()
    closing: list[asyncio.Task[None]] = []

    def close(event: object) -> None:
        if is_armed and not closing and (is_handled or isinstance(event, MemberFenced)):
            closing.append(asyncio.create_task(consumer.close()))
            is_over.set()

    is_armed = False
    play = await Play(nc, name, session=1.0).create()
    await play.publish(8)
    async with coordinator(nc, bucket=name, prefix=name, lease=LONG) as leader:
        options: dict[str, Any] = {"on_revoked": close} if is_handled else {"on_event": close}
        consumer = play.consumer("a", prefix=name, auto_commit_interval=PATIENCE, **options)
        await consumer.open()
        await take(consumer, 3)
        is_armed = True
        await leader.close()
        async with asyncio.timeout(PATIENCE):
            await is_over.wait()
    async with coordinator(nc, bucket=name, prefix=name, lease=LONG):  # so that the member can leave at once
        with pytest.raises(UnknownMemberError, match=r"lost its partitions before .* were committed"):
            await closing[0]


async def test_close_does_not_count_a_start_that_was_not_committed_as_lost_messages(
    nc: Client, name: str
) -> None:
    is_fenced = asyncio.Event()

    def on_event(event: GroupEvent) -> None:
        if isinstance(event, MemberFenced):
            is_fenced.set()

    play = await Play(nc, name, session=1.0).create()
    await play.publish(4)
    async with coordinator(nc, bucket=name, prefix=name, lease=LONG) as leader:

        async def assigned(_: list[TopicPartition]) -> None:
            await leader.close()  # the readers, which commit their starts, begin after this

        consumer = play.consumer("a", prefix=name, on_assigned=assigned, on_event=on_event)
        await consumer.open()
        async with asyncio.timeout(PATIENCE):
            await is_fenced.wait()
    async with coordinator(nc, bucket=name, prefix=name, lease=LONG):  # so that the member can leave at once
        await consumer.close()


async def test_close_that_cannot_leave_is_an_event_of_its_own(
    play: Play, jetstream_server: NatsServer
) -> None:
    events: list[GroupEvent] = []
    nc = await connect(jetstream_server.url)
    consumer = await play.consumer("a", nc=nc, on_event=events.append).open()
    await nc.close()
    await consumer.close()
    failed = [event for event in events if isinstance(event, LeaveFailed | CommitFailed)]
    assert [(type(event), event.consumer_id) for event in failed] == [(LeaveFailed, "a")]
    assert isinstance(failed[0].error, TransportError)


@pytest.mark.parametrize("callback", ["on_assigned", "on_revoked"])
async def test_consumer_that_its_own_callback_closes_leaves_no_task(play: Play, callback: str) -> None:
    async def close(_: list[TopicPartition]) -> None:
        await consumer.close()

    consumer = play.consumer("a", **{callback: close})
    if callback == "on_assigned":
        with pytest.raises(UnknownMemberError, match="was closed"):
            await consumer.open()
    else:
        await consumer.open()
        async with play.consumer("b"):
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait(consumer._tasks)
