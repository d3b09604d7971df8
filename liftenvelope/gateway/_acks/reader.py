"""Acks messages of raw NATS publishers once JetStream has stored them.

The gateway is not in the path of such messages: JetStream records the subject. A durable consumer of the
partition delivers every stored message. The reader publishes the ack to the inbox in the envelope, and only
then acknowledges the message to JetStream, on the same connection. So every ack is sent at least once.

A delivery can be lost when a reader dies, its connection drops or the consumer falls silent. JetStream would
redeliver only after 30 seconds. So a reader that starts or restarts creates its own consumer, which begins
after the last ack floor, and deletes all others: those of many partitions after all readers have theirs. If
the last reader is gone and has acknowledged everything, a reader that starts takes up its consumer instead,
which costs nats-server less. Two readers must never share a consumer: an acknowledgement is cumulative, so
one reader would acknowledge messages that only the other received, and their acks would never be sent. A
reader whose consumer is taken over receives nothing more, and is notified. A reader that hung and leads again
when it resumes creates a new consumer. While two gateways both believe that they lead the partition, they
take it over from each other, and no ack is missed.

The consumer always has one replica, because each replicated consumer would be another Raft group. When the
server that holds the consumer is lost, :mod:`liftenvelope.gateway._acks.servers` notifies the reader, which
creates another consumer at its own position. If that position is unknown, because the leader or its
connection was lost as well, the messages of the last 60 seconds are acked again.

Thousands of readers may be idle, so their consumers send heartbeats rarely. Two other signals replace them:
JetStream publishes an advisory when a consumer is deleted, and a reader whose deliveries stop asks once
whether it has received all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Self

from liftenvelope._backoff import Backoff
from liftenvelope._checks import as_seconds
from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerNotFoundError,
    LiftEnvelopeError,
    NoJetStreamError,
    TransportError,
    UsageError,
)
from liftenvelope.gateway._acks.consumers import ACK_CONSUMER, AckConsumer, AckConsumers
from liftenvelope.gateway._acks.deletions import ack_deletions_of
from liftenvelope.gateway._acks.flow import ACKNOWLEDGE_EVERY, AckCommands, AckFlow
from liftenvelope.gateway._acks.servers import ack_servers_of
from liftenvelope.gateway._partitions.consumer_slots import consumer_slots_of
from liftenvelope.gateway._partitions.inbound import last_received
from liftenvelope.jetstream.api import DEFAULT_PREFIX, Api
from liftenvelope.jetstream.counting import is_stored
from liftenvelope.jetstream.watch import watch_of
from liftenvelope.nats.link import Link
from liftenvelope.nats.receiving import DirectSubscription, subscribe_direct

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.jetstream.context import JetStream

__all__ = ["PartitionAckReader"]

_log: Final = logging.getLogger("liftenvelope.gateway")
#: Seconds without a delivery after which a reader asks whether it has received all.
_QUIET: Final = 10.0
#: Timeout of a request to JetStream, in seconds. Short, because leaders may change and requests are retried.
_ONE_REQUEST: Final = 2.0
#: Seconds between two checks whether all messages are acked.
_LOOK: Final = 0.01
#: Seconds before the next bind after one.
_REBIND_PAUSE: Final = 0.1


async def _at_once() -> None:
    """Wait for nothing."""


class PartitionAckReader:
    """Sends the acks of one partition while open. Only the gateway that leads the partition runs one.

    Args:
        nc: The connection, preferably an accelerated one (:func:`liftenvelope.nats.accelerate`). It
            must not be shared with slow subscribers.
        jetstream_stream: The JetStream stream that holds the partition.
        stream: Name of the Liftbridge stream.
        partition_subject: Subject of the partition.
        api_prefix: Prefix of JetStream's API.
        heartbeat: Heartbeat interval of the consumer, in seconds. Default 30.
        start_sequence: Stream sequence of the first message to ack if no other reader's consumer exists.
            Default 1: all messages.
        on_error: Called with each error that keeps the reader from reading. The reader retries until closed.
        may_ack: Returns whether this gateway leads the partition now. Called before each write of acks, and
            before the reader takes over from another one. Default: always true.
        lease: Waits until ``may_ack`` may be true again. Default: returns at once.
        inboxes: Allowed prefixes of ack inboxes. Default: any inbox is allowed.
        on_refused: Called with the beginning of an ack inbox that got no ack because it is not allowed.
        on_bound: Called after each bind and loss, with True if a consumer delivers messages.
        on_acked: Called with the number of acks that were just written.

    Attributes:
        acks_sent: Number of acks written to the connection.
        is_bound: True while a consumer delivers messages, as far as the reader knows.

    Raises:
        UsageError: The heartbeat is not positive, or the internals of this nats-py version are unknown.
    """

    def __init__(
        self,
        nc: Client,
        *,
        jetstream_stream: str,
        stream: str,
        partition_subject: str,
        api_prefix: str = DEFAULT_PREFIX,
        heartbeat: float = 30.0,
        start_sequence: int = 1,
        on_error: Callable[[LiftEnvelopeError], None] | None = None,
        may_ack: Callable[[], bool] = lambda: True,
        lease: Callable[[], Awaitable[object]] = _at_once,
        inboxes: tuple[bytes, ...] = (b"",),
        on_refused: Callable[[bytes], None] = lambda _: None,
        on_bound: Callable[[bool], None] = lambda _: None,
        on_acked: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._on_bound = on_bound
        self._on_acked = on_acked
        self._may_ack = may_ack
        self._lease = lease
        self._on_refused = on_refused
        self._nc = nc
        self._link = Link(nc)
        if not self._link.direct:
            raise UsageError("acks of stored messages need a supported nats-py: install nats-py>=2.16,<3")
        self._api = Api(nc, prefix=api_prefix, timeout=_ONE_REQUEST)
        self._consumers = AckConsumers(self._api, jetstream_stream)
        self._jetstream_stream = jetstream_stream
        self._heartbeat = as_seconds("heartbeat", heartbeat)
        self._done = self._floor = start_sequence - 1
        self._on_error = on_error
        self._flow = AckFlow(
            stream,
            partition_subject,
            max_ack=self._link.max_payload,
            heartbeat=self._heartbeat,
            inboxes=inboxes,
        )
        self._subscription: DirectSubscription | None = None
        self._consumer = ""
        # Consumers to delete, which were there before the own one.
        self._others: list[AckConsumer] = []
        # The last bound consumer, and whether everything written for it is sure to have reached the server.
        self._bound, self._is_certain = "", False
        self._servers = ack_servers_of(nc)
        self._deletions = ack_deletions_of(nc)
        self._slots = consumer_slots_of(nc)
        self._wanted = asyncio.Event()
        self._epoch = 0
        # Runs after a delivery; fires when no more deliveries come for ``_QUIET`` seconds.
        self._quiet: asyncio.TimerHandle | None = None
        self._asked_for = False
        self._due = 0
        # Runs after an ack; fires when the acknowledgement to JetStream is due.
        self._settling: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._watch = watch_of(nc)
        self.acks_sent = 0
        self.is_bound = False

    @property
    def position(self) -> int:
        """Stream sequence of the last message whose ack was written by the current consumer, 0 for none."""
        return self._flow.position

    @property
    def acked(self) -> int:
        """Stream sequence of the last message that this reader or an earlier one has acked, 0 for none."""
        return max(self._done, self._floor, self.position)

    async def start(self, *, take_over: bool = True) -> None:
        """Start to ack in the background, from the position of the last reader.

        Args:
            take_over: Whether to delete the consumers of other readers now. If False, the caller must call
                :meth:`take_over` soon. Until then, another reader that is alive sends acks as well. Default
                True.

        Raises:
            UsageError: The reader was started already.
            StreamNotFoundError: The JetStream stream does not exist.
            LiftEnvelopeError: The consumer can't be created now. The reader is not started.
        """
        if self._task is not None:
            raise UsageError("this reader was started already")
        try:
            await self._bind()
            if take_over:
                await self._take_over()
        except BaseException:
            await self._unsubscribe()
            raise
        self._watch.add(self)
        self._task = asyncio.create_task(self._run(), name=f"acks of {self._jetstream_stream}")
        self._task.add_done_callback(self._ended)

    async def take_over(self) -> None:
        """Delete the consumers of other readers. If that fails, report it and replace the own consumer.

        Does nothing once the reader is closed: the consumer of the next reader may be among the others.
        """
        if self._task is None:
            return
        try:
            await self._take_over()
        except LiftEnvelopeError as error:
            self._replace()
            self._tell(error)

    async def close(self) -> None:
        """Stop sending acks. The next reader acks the messages after that. Closing twice is fine."""
        self._watch.remove(self)
        task, self._task = self._task, None
        if task is not None:
            await cancel([task])
        await self._unsubscribe()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (defect := task.exception()) is not None:
            _log.error("the acks of %s ended with a defect", self._jetstream_stream, exc_info=defect)
            self._give_up()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Callbacks of the connection's watch

    def lost(self) -> None:
        """Note that the consumer is lost with the connection: :meth:`restored` replaces it."""
        self._mark(False)

    def restored(self) -> None:
        """Replace the consumer when the connection is back, because deliveries in flight are lost."""
        self._replace()

    def gone(self, reason: str) -> None:
        """Stop reading when the connection is closed or draining, and report the reason."""
        self._give_up()
        self._tell(TransportError(reason))

    # Callbacks of the servers' watch

    async def is_reachable(self) -> bool:
        """Return False if the server that holds the consumer does not answer."""
        try:
            await self._api.request(f"CONSUMER.INFO.{self._jetstream_stream}.{self._consumer}")
        except (CallTimeoutError, NoJetStreamError):
            # If the connection is the cause, its own watch handles that.
            return not self._link.is_connected or self._link.epoch != self._epoch
        except LiftEnvelopeError:
            return True  # handled by the reader's own checks
        return True

    def server_lost(self) -> None:
        """Replace the consumer, because the server that holds it does not answer."""
        self._replace()

    # Reading

    def _give_up(self) -> None:
        """Take nothing until the consumer is replaced."""
        self._flow.give_up()
        self._mark(False)

    def _replace(self) -> None:
        self._give_up()
        self._wanted.set()

    def _mark(self, is_bound: bool) -> None:
        if is_bound != self.is_bound:
            self.is_bound = is_bound
            self._on_bound(is_bound)

    def _take(self, messages: list[Any]) -> None:
        if self._link.epoch != self._epoch:
            # Acks on the last connection may be lost, and a cumulative acknowledgement would cover them.
            self._give_up()
        if not self._may_ack():
            # Another gateway may have acked these. The next leader begins after the ack floor.
            self._replace()
        self._write(self._flow.feed(messages, time.monotonic(), time.time_ns()))
        if self._flow.refused:
            self._on_refused(self._flow.refused)
        if self._settling is None and self._flow.owes:
            self._settling = asyncio.get_running_loop().call_later(ACKNOWLEDGE_EVERY, self._settle)
        if self._flow.broken:
            self._mark(False)
            self._wanted.set()
        elif self._quiet is None and self._flow.delivery > self._due:
            self._await_quiet()

    def _write(self, written: AckCommands) -> None:
        if not written.frames:
            return
        try:
            self._link.write(written.frames, written.messages, written.payload)
            self._link.send_now()
        except TransportError as error:
            self._give_up()
            self._tell(error)
        else:
            self.acks_sent += written.acks
            self._on_acked(written.acks)

    def _settle(self) -> None:
        """Acknowledge acked messages to JetStream, unless their acks may be lost with the last connection."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self._link.epoch == self._epoch:
            self._write(self._flow.settle(time.monotonic()))

    def _await_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        self._quiet = loop.call_later(_QUIET, self._on_quiet, self._flow.delivery)

    def _on_quiet(self, before: int) -> None:
        if self._flow.delivery != before:
            self._await_quiet()
            return
        self._quiet = None
        self._asked_for = True
        self._wanted.set()

    async def _run(self) -> None:
        backoff = Backoff(first=0.1, longest=2.0)
        while True:
            await self._until_wanted()
            if not self._may_ack():
                self._give_up()
                await self._lease()  # thousands of readers that poll for it would load the event loop
                if not self._may_ack():
                    await asyncio.sleep(backoff.next())
                continue
            try:
                async with self._slots.taken():
                    if not self._may_ack():
                        continue  # not any more, after the wait for the slot
                    await self._bind()
                    await self._take_over()
                backoff.reset()
                await asyncio.sleep(_REBIND_PAUSE)  # slows down two readers that take over from each other
            except LiftEnvelopeError as error:
                self._give_up()
                self._tell(error)
                await asyncio.sleep(backoff.next())

    async def _until_wanted(self) -> None:
        """Wait until the consumer must be replaced."""
        while not self._flow.broken and (left := self._flow.patience(time.monotonic())) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            self._wanted.clear()
            if self._asked_for:
                await self._ask()

    async def catch_up(self, js: JetStream) -> None:
        """Wait until every message is acked that JetStream has received when this is called.

        Args:
            js: JetStream on the same connection; see :func:`last_received` for the messages not waited for.

        Raises:
            JetStreamError, CallTimeoutError, TransportError: JetStream does not report what it has stored.
        """
        last = await last_received(js, self._jetstream_stream)
        before = -1
        while True:
            acked = max(self._floor, self.position)
            is_done = acked >= last
            if acked == before and not is_done:  # removed messages are not delivered
                is_done = not await is_stored(self._api, self._jetstream_stream, acked + 1, last)
            if is_done and not self._flow.broken:
                return
            before = acked
            await asyncio.sleep(_LOOK)

    async def _ask(self) -> None:
        """Check whether everything that the consumer has delivered was received."""
        self._asked_for = False
        if self._flow.delivery < self._due:
            self._give_up()  # still missing after a second quiet period
            return
        try:
            due = await self._consumers.due(self._consumer)
        except ConsumerNotFoundError:
            self._give_up()
            return
        except LiftEnvelopeError as error:
            self._tell(error)
            self._await_quiet()
            return
        self._due = due
        if self._flow.delivery < self._due:
            self._await_quiet()

    def _tell(self, error: LiftEnvelopeError) -> None:
        if self._on_error is not None:
            self._on_error(error)

    # Binding

    async def _bind(self) -> None:
        """Get a consumer and a subscription for all messages after the ack floor."""
        self._is_certain = self._is_certain and self._link.epoch == self._epoch
        await self._unsubscribe()
        self._wanted.clear()
        inbox = self._link.new_inbox()
        self._epoch = self._link.epoch
        # No barrier needed: the server reads the subscriptions before the request that makes it deliver.
        self._subscription = await subscribe_direct(self._nc, inbox, self._take)
        self._flow.begin(time.monotonic())
        others = await (self._consumers.named() if self._bound else self._consumers.listed())
        taken = await self._take_up(others, inbox)
        server = await self._create(others, inbox) if taken is None else taken
        self._bound, self._is_certain, self.is_bound = self._consumer, True, not self._flow.broken
        self._on_bound(self.is_bound)  # also if it is lost already: the bind has ended
        if server:
            self._servers.add(server, self)

    async def _take_up(self, others: list[AckConsumer], inbox: str) -> str | None:
        """Take up the consumer of the last reader; return its server, or None if that is not possible."""
        if self._bound or len(others) != 1 or others[0].delivered is None:
            return None  # a consumer that this reader had may be why it needs another one
        await self._own(others[0].name)
        # If it has delivered more since it was listed, a delivery is missing, and the reader creates another.
        self._flow.follow(others[0].delivered)
        server = await self._consumers.take_up(others[0], inbox, self._heartbeat)
        if server is not None:
            self._floor, self._others = others[0].floor or 0, []
        return server

    async def _create(self, others: list[AckConsumer], inbox: str) -> str:
        """Create a consumer, and note the others; return its server."""
        await self._own(ACK_CONSUMER + inbox.rpartition(".")[2])
        self._flow.follow(0)
        start = await self._start(others)
        server = await self._consumers.create(self._consumer, inbox, start, self._heartbeat)
        self._floor, self._others = start - 1, others  # messages before the start are acked
        return server

    async def _own(self, name: str) -> None:
        """Take a consumer for the own one, and notice its deletion from now on."""
        before, self._consumer = self._consumer, name
        await self._deletions.add(self._nc, name, self._replace)
        if before != name:
            await self._deletions.remove(before)

    async def _take_over(self) -> None:
        """Delete the consumers that existed when the own one was created."""
        others, self._others = self._others, []
        for other in others:  # if one fails, the next bind finds the rest
            await self._consumers.take_over(other)

    async def _start(self, others: list[AckConsumer]) -> int:
        """Return the stream sequence to begin at."""
        if not others:
            return 1 + self._done  # no consumer yet, or the last one was deleted
        floors = [floor for other in others if (floor := self._floor_of(other)) is not None]
        if floors:
            return 1 + max(floors)
        return await self._consumers.recent_start()

    def _floor_of(self, other: AckConsumer) -> int | None:
        """Return a consumer's ack floor; None if its server is lost and its position is not certain."""
        is_lost = other.floor is None and other.name == self._bound
        return self._done if is_lost and self._is_certain else other.floor

    async def _unsubscribe(self) -> None:
        self._mark(False)
        self._done = max(self._done, self._flow.position)
        self._servers.remove(self)
        if self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None  # a cancelled call leaves this to close()
        await self._deletions.remove(self._consumer)
        self._settle()
        self._due, self._asked_for = 0, False
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
