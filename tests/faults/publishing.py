"""Paths of single messages and batches: the ack inbox, the publisher, the client and JetStream."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from liftenvelope.client import OutgoingMessage
from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.jetstream import JetStream, PubAck
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.partition import partition_subject
from tests.faults.ledger import UNORDERED
from tests.faults.running import Path, Run
from tests.faults.scenes import connect_nats

__all__ = ["ACK_INBOX", "CLIENT", "JETSTREAM", "PUBLISHER", "publish_once"]

_PARTITIONS: Final = 3
_IN_FLIGHT: Final = 1_000
_BATCH: Final = 500
#: Seconds to wait after a refusal, so that a server that is away is not asked without pause.
_PAUSE: Final = 0.02


def _settle(run: Run, call: str, index: int, began: float, future: asyncio.Future[Any]) -> None:
    """Take the outcome of one message from its future."""
    run.note(call, time.monotonic() - began, run.plan.timeout)
    if future.cancelled():
        run.violate(f"{call} of message {index} was cancelled")
    elif (error := future.exception()) is not None:
        run.ledger.failed(index, error)
    else:
        ack = future.result()
        run.ledger.stored(index, ack.offset)


async def _ack_inbox(run: Run) -> None:
    nc = await connect_nats(run.scene.nats_urls)
    subjects = [partition_subject(run.stream, number) for number in range(run.messages.partitions)]
    async with AckInbox(nc, timeout=run.plan.timeout, max_outstanding=_IN_FLIGHT) as inbox:
        while not run.is_over():
            with run.timed("AckInbox.capacity", 2 * run.plan.timeout):
                await inbox.capacity()
            index = run.ledger.take()
            future = inbox.publish_nowait(
                subjects[run.messages.partition(index)],
                run.messages.value(index),
                key=run.messages.key(index),
                headers=run.messages.headers(index),
                ack_policy=run.scene.ack_policy,
                crc=index % 3 == 0,
            )
            future.add_done_callback(partial(_settle, run, "AckInbox.publish", index, time.monotonic()))
            if index % 100 == 0:
                await asyncio.sleep(0)
        with run.timed("AckInbox.drain", 2 * run.plan.timeout):
            await inbox.drain()
        await asyncio.sleep(0)  # the callbacks of the last futures
    await nc.close()


async def _publisher(run: Run) -> None:
    nc = await connect_nats(run.scene.nats_urls)
    messages, ledger = run.messages, run.ledger
    waiting: set[asyncio.Task[None]] = set()
    async with AckInbox(nc, max_outstanding=4 * _BATCH) as inbox:
        publisher = EnvelopePublisher(
            nc,
            run.stream,
            inbox=inbox,
            ack_policy=run.scene.ack_policy,
            partitions=messages.partitions,
            timeout=run.plan.timeout,
        )
        while not run.is_over():
            indexes = ledger.take_many(_BATCH)
            began = time.monotonic()
            try:
                acks = await publisher.publish_batch(
                    [messages.value(index) for index in indexes],
                    keys=[messages.key(index) for index in indexes],
                    headers=[messages.headers(index) for index in indexes],
                    partitions=[messages.partition(index) for index in indexes],
                )
            except LiftEnvelopeError as exc:
                ledger.failed_many(indexes, exc)
                await asyncio.sleep(_PAUSE)
                continue
            finally:
                # It waits for places, which the batches before free at their deadlines.
                run.note("EnvelopePublisher.publish_batch", time.monotonic() - began, 3 * run.plan.timeout)
            task = asyncio.create_task(_summary(run, indexes, acks))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)
    await nc.close()


async def _summary(run: Run, indexes: range, acks: Any) -> None:
    """Take the outcomes of a batch."""
    with run.timed("BatchAcks", run.plan.timeout):
        summary = await acks
    for index, offset in zip(indexes, summary.offsets, strict=True):
        error = summary.failures.get(index - indexes.start)
        if error is None:
            run.ledger.stored(index, offset)
        else:
            run.ledger.failed(index, error)


async def _client(run: Run) -> None:
    """One ``publish_many`` for most messages, and single ones meanwhile."""
    async with run.scene.api_client() as client:
        given = array("q")
        retries: Any = {"retry_unacked": True} if run.plan.again else {}

        async def source() -> AsyncIterator[OutgoingMessage]:
            while not run.is_over():
                index = run.ledger.take(UNORDERED if run.plan.again else 0)
                given.append(index)
                if index % 100 == 0:
                    await asyncio.sleep(0)
                yield _outgoing(run, index)

        many = client.publish_many(
            run.stream,
            source(),
            timeout=run.plan.timeout,
            max_in_flight=_IN_FLIGHT,
            ack_policy=run.scene.ack_policy,
            on_error="collect",
            **retries,
        )
        singles = asyncio.create_task(_singles(run, client))
        async for place, ack in many:
            run.ledger.stored(given[place], ack.offset)
        for place, error in many.summary.failures.items():
            run.ledger.failed(given[place], error)
        await singles


async def _singles(run: Run, client: Any) -> None:
    while not run.is_over():
        index = run.ledger.take(UNORDERED)
        try:
            with run.timed("Client.publish", run.plan.timeout):
                ack = await client.publish(
                    run.stream,
                    run.messages.value(index),
                    key=run.messages.key(index),
                    headers=run.messages.headers(index),
                    partition=run.messages.partition(index),
                    ack_policy=run.scene.ack_policy,
                    timeout=run.plan.timeout,
                )
        except LiftEnvelopeError as exc:
            run.ledger.failed(index, exc)
            await asyncio.sleep(_PAUSE)
        else:
            run.ledger.stored(index, ack.offset)


def _outgoing(run: Run, index: int) -> OutgoingMessage:
    return OutgoingMessage(
        value=run.messages.value(index),
        key=run.messages.key(index),
        headers=run.messages.headers(index),
        partition=run.messages.partition(index),
    )


async def _jetstream(run: Run) -> None:
    nc = await connect_nats(run.scene.nats_urls)
    async with JetStream(nc, timeout=run.plan.timeout) as js:
        if run.plan.again:
            await asyncio.gather(*(_once(run, js) for _ in range(100)))
        else:
            await _publish_async(run, js)
        with run.timed("JetStream.publish_async_complete", run.plan.timeout):
            await js.publish_async_complete()
        await asyncio.sleep(0)
    await nc.close()


async def _publish_async(run: Run, js: JetStream) -> None:
    # A message that is retried while a leader is elected is stored after later ones.
    retries, lane = (0, 0) if run.plan.seed % 2 else (2, UNORDERED)
    while not run.is_over():
        index, began = run.ledger.take(lane), time.monotonic()
        try:
            future = await js.publish_async(
                f"{run.stream}.{index % 7}",
                run.messages.value(index),
                headers=_text_headers(run, index),
                retry_attempts=retries,
            )
        except LiftEnvelopeError as exc:
            run.ledger.failed(index, exc)
            await asyncio.sleep(_PAUSE)
            continue
        finally:
            run.note("JetStream.publish_async", time.monotonic() - began, 2 * run.plan.timeout)
        future.add_done_callback(partial(_settle_sequence, run, index, time.monotonic()))
        if index % 50 == 0:
            await asyncio.sleep(0)


def _settle_sequence(run: Run, index: int, began: float, future: asyncio.Future[Any]) -> None:
    run.note("PublishFuture", time.monotonic() - began, run.plan.timeout)
    if (error := future.exception()) is not None:
        run.ledger.failed(index, error)
        return
    ack = future.result()
    if ack.duplicate:
        run.violate(f"message {index} has no id and is called a duplicate")
    run.ledger.stored(index, ack.sequence - 1)


async def _once(run: Run, js: JetStream) -> None:
    """Publish one message after the other."""
    while not run.is_over():
        index = run.ledger.take(UNORDERED)
        ack = await publish_once(run, js, f"{run.stream}.{index % 7}", index)
        run.ledger.stored(index, ack.sequence - 1)


async def publish_once(run: Run, js: JetStream, subject: str, index: int) -> PubAck:
    """Publish a message with an id, again and again until it has its ack."""
    while True:
        try:
            with run.timed("JetStream.publish", 2 * run.plan.timeout):
                return await js.publish(
                    subject,
                    run.messages.value(index),
                    headers=_text_headers(run, index),
                    message_id=f"{run.plan.seed}-{index}",
                )
        except LiftEnvelopeError as exc:
            run.ledger.count(exc)
            run.is_over()  # raises where nothing goes on any more
            await asyncio.sleep(_PAUSE)


def _text_headers(run: Run, index: int) -> dict[str, str] | None:
    found = run.messages.headers(index)
    return None if found is None else {name: value.decode() for name, value in found.items()}


ACK_INBOX = Path(lambda run: run.in_event_loop(_ack_inbox), _PARTITIONS)
PUBLISHER = Path(lambda run: run.in_event_loop(_publisher), _PARTITIONS)
CLIENT = Path(lambda run: run.in_event_loop(_client), _PARTITIONS, once=lambda plan: not plan.again)
JETSTREAM = Path(lambda run: run.in_event_loop(_jetstream))
