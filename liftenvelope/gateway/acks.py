"""Acks of what raw NATS publishers have put into a partition, sent once JetStream has stored it.

The gateway is not in the path of such messages: JetStream records the subject. A durable consumer of the
partition delivers every stored message; the ack goes to the inbox that its envelope names, and only then is
the message acknowledged to JetStream, on the same connection. So whatever happens in between, an ack is sent
at least once.

What was delivered may be lost on its way: when a reader dies, when its connection does, when a delivery is
missing, when the consumer is silent. JetStream would deliver it again after half a minute. So a reader that
begins, or begins anew, makes a consumer of its own, which goes on where the last one was acknowledged, and
deletes the others. No two readers share a consumer: by an acknowledgement of the one, which holds for all
messages before, what only the other one has got would never have its ack. A reader that was taken over gets
nothing more, and is told: one that had hung, and leads again when it wakes, begins anew. As long as two
believe that the partition is theirs they take it from each other, and no ack is missing.

The consumer has one replica, whatever the partition has: each replicated consumer would be a Raft group of
its own in every server. When the server that holds it is lost, the reader is told by
:mod:`liftenvelope.gateway.ack_servers` and goes on with another consumer where it was. If it does not know
where that was, because the leader or its connection was lost as well, the messages of the last minute are
acked again.

There may be thousands of readers that have nothing to read, so heartbeats of their consumers are rare. What
they would tell comes in other ways: JetStream publishes that a consumer was deleted, and a reader to which
nothing comes any more, after something did, asks once whether that was all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerNotFoundError,
    JetStreamError,
    LiftEnvelopeError,
    NoJetStreamError,
    TransportError,
    UsageError,
)
from liftenvelope.gateway.ack_flow import ACKNOWLEDGE_EVERY, AckFlow, Written
from liftenvelope.gateway.ack_servers import ack_servers_of
from liftenvelope.gateway.feed import ask_start
from liftenvelope.jetstream._watch import watch_of
from liftenvelope.jetstream.api import DEFAULT_PREFIX, Api
from liftenvelope.jetstream.listing import consumer_names
from liftenvelope.nats._link import Link
from liftenvelope.nats._outcomes import positive
from liftenvelope.nats._receiving import DirectSubscription, subscribe_direct

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["ACK_CONSUMER", "AckReader"]

#: What the names of the consumers begin with.
ACK_CONSUMER: Final = "lift-acks-"
_NS: Final = 1_000_000_000
#: How long JetStream waits before it sends a message again, in seconds. Nobody waits for that: see above.
_ACK_WAIT: Final = 30
#: How many messages may be on their way. Flow control bounds their bytes.
_MAX_PENDING: Final = 65_536
_BARRIER: Final = 5.0
#: For how long nothing may have come before a reader asks whether that was all, in seconds.
_QUIET: Final = 10.0
#: Where JetStream publishes that a consumer was deleted (ADR-1): the names of stream and consumer follow.
_DELETED: Final = "$JS.EVENT.ADVISORY.CONSUMER.DELETED"
#: How long JetStream has for an answer, in seconds. Short: who leads may change, and it is asked again.
_ONE_REQUEST: Final = 2.0
#: Questions for a consumer without an answer after which its server counts as lost.
_QUESTIONS: Final = 2
#: Seconds of messages that are acked again where nobody knows which have their acks.
_ACK_AGAIN: Final = 60
#: What a reader is told that has lost its consumer: a status, such as JetStream itself sends.
_TAKEN_OVER: Final = b"NATS/1.0 409 Taken Over\r\n\r\n"
#: How often to look whether all messages have their acks, in seconds.
_LOOK: Final = 0.01
#: For how long nothing more comes where JetStream's queue is empty, and for how long it is waited for.
_NO_MORE: Final = 0.1
_LONGEST_QUEUE: Final = 2.0
#: The pauses between attempts, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class _Other(NamedTuple):
    """Another consumer: up to where what it has delivered is done, and where it delivers to.

    Both are None if the server that holds it is lost; the floor may be known all the same.
    """

    name: str
    floor: int | None
    inbox: str | None


class AckReader:
    """Sends the acks of one partition, as long as it is open. One gateway at a time: its leader.

    Args:
        nc: The connection, by preference an accelerated one (:func:`liftenvelope.nats.accelerate`). It
            must not be shared with subscribers that are slow.
        jetstream_stream: The JetStream stream that holds the partition.
        stream: The Liftbridge stream's name.
        partition_subject: The partition's subject.
        api_prefix: That of JetStream's API.
        heartbeat: How often the consumer says that it is there, in seconds. Default 30.
        start_sequence: Number in the JetStream stream of the first message that is to be acked, for when the
            consumer is made. Default 1: all.
        on_error: Told what keeps the reader from reading. It goes on trying until it is closed.
        may_ack: Returns whether this gateway leads the partition now. Asked before each write of acks, and
            before the reader takes over from another one. Default: always.
        inboxes: What an ack inbox must begin with. Default: anything.
        on_refused: Told the beginning of an ack inbox that got no ack because it is not allowed.

    Attributes:
        acks_sent: How many acks have been written to the connection.

    Raises:
        UsageError: The heartbeat is none, or this nats-py has another inside than those that are known.
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
        inboxes: tuple[bytes, ...] = (b"",),
        on_refused: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._may_ack = may_ack
        self._on_refused = on_refused
        self._nc = nc
        self._link = Link(nc)
        if not self._link.direct:
            raise UsageError("acks of stored messages need a nats-py whose buffer of commands is known")
        self._api = Api(nc, prefix=api_prefix, timeout=_ONE_REQUEST)
        self._jetstream_stream = jetstream_stream
        self._heartbeat = positive("heartbeat", heartbeat)
        self._done = start_sequence - 1
        self._on_error = on_error
        self._flow = AckFlow(
            stream,
            partition_subject,
            max_ack=self._link.max_payload,
            heartbeat=self._heartbeat,
            inboxes=inboxes,
        )
        self._subscriptions: list[DirectSubscription] = []
        self._consumer = ""
        # The last consumer that was bound, and whether all that was written for it has reached the server.
        self._bound, self._is_certain = "", False
        # Questions for consumers that had no answer, by the name of the consumer.
        self._unanswered: dict[str, int] = {}
        self._servers = ack_servers_of(nc)
        self._wanted = asyncio.Event()
        self._epoch = 0
        # After some messages: the timer that ends when nothing more has come for a while.
        self._quiet: asyncio.TimerHandle | None = None
        self._asked_for = False
        self._due = 0
        # After some acks: the timer that ends when JetStream is to be told of them.
        self._settling: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._watch = watch_of(nc)
        self.acks_sent = 0

    @property
    def position(self) -> int:
        """Number in the JetStream stream of the last message that was dealt with, 0 for none so far."""
        return self._flow.position

    async def start(self) -> None:
        """Go on where the last reader was, and in the background.

        Raises:
            StreamNotFoundError: There is no such JetStream stream.
            JetStreamError, CallTimeoutError, TransportError: No consumer can be made now. Nothing goes on.
        """
        if self._task is not None:
            raise UsageError("this reader was started already")
        try:
            await self._bind()
        except BaseException:
            await self._unsubscribe()
            raise
        self._watch.add(self)
        self._task = asyncio.create_task(self._run(), name=f"acks of {self._jetstream_stream}")

    async def close(self) -> None:
        """Send no more acks. What is stored from now on is acked by the next reader. May be called again."""
        self._watch.remove(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (failure := task.exception()) is not None:
                raise failure
        await self._unsubscribe()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # What the watch of the connection tells

    def lost(self) -> None:
        """The connection is down: what is on its way now never comes."""

    def restored(self) -> None:
        """The connection is back."""
        self._flow.give_up()
        self._wanted.set()

    def gone(self, reason: str) -> None:
        """The connection is closed, or is being drained."""
        self._flow.give_up()
        self._tell(TransportError(reason))

    # What the watch of the servers tells

    async def is_reachable(self) -> bool:
        """Whether the server that holds the consumer answers."""
        try:
            await self._api.request(f"CONSUMER.INFO.{self._jetstream_stream}.{self._consumer}")
        except (CallTimeoutError, NoJetStreamError):
            # Where the connection is the cause, others see to it.
            return not self._link.is_connected or self._link.epoch != self._epoch
        except (JetStreamError, TransportError):
            return True  # others tell of that
        return True

    def server_lost(self) -> None:
        """Go on with another consumer: the server that holds this one does not answer."""
        self._flow.give_up()
        self._wanted.set()

    # Reading

    def _take(self, messages: list[Any]) -> None:
        if self._link.epoch != self._epoch:
            # Acks written to the last connection may be lost, and an acknowledgement holds for them, too.
            self._flow.give_up()
        if not self._may_ack():
            # Another gateway may have acked these. The next leader begins after the last acknowledgement.
            self._flow.give_up()
            self._wanted.set()
        self._write(self._flow.feed(messages, time.monotonic(), time.time_ns()))
        if self._flow.refused:
            self._on_refused(self._flow.refused)
        if self._settling is None and self._flow.owes:
            self._settling = asyncio.get_running_loop().call_later(ACKNOWLEDGE_EVERY, self._settle)
        if self._flow.broken:
            self._wanted.set()
        elif self._quiet is None and self._flow.delivery > self._due:
            self._await_quiet()

    def _write(self, written: Written) -> None:
        if not written.frames:
            return
        try:
            self._link.write(written.frames, written.messages, written.payload)
            self._link.send_now()
        except TransportError as error:
            self._flow.give_up()
            self._tell(error)
        else:
            self.acks_sent += written.acks

    def _settle(self) -> None:
        """Tell JetStream what has its acks, unless those may be lost."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self._link.epoch == self._epoch:
            self._write(self._flow.settle(time.monotonic()))

    def _on_deleted(self, _: list[Any]) -> None:
        self._flow.give_up()
        self._wanted.set()

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
        pause = _FIRST_PAUSE
        while True:
            await self._until_wanted()
            if not self._may_ack():
                self._flow.give_up()
                await asyncio.sleep(_FIRST_PAUSE)
                continue
            try:
                await self._bind()
                pause = _FIRST_PAUSE
                await asyncio.sleep(pause)  # two readers that each take over from the other do it slowly
            except (JetStreamError, CallTimeoutError, TransportError) as error:
                self._flow.give_up()
                self._tell(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _until_wanted(self) -> None:
        """Return when the consumer must be bound anew."""
        while not self._flow.broken and (left := self._flow.patience(time.monotonic())) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            self._wanted.clear()
            if self._asked_for:
                await self._ask()

    async def catch_up(self) -> None:
        """Wait until every message that JetStream has when this is called has its ack.

        JetStream takes messages without a reply subject into a queue, and tells nobody how long that is. So
        this waits on while more come, but for two seconds at most: publishers may never pause.

        Raises:
            JetStreamError, CallTimeoutError, TransportError: JetStream does not say how many those are.
        """
        consumer, due = "", 0
        while True:
            if self._consumer != consumer:
                consumer = self._consumer
                try:
                    info = await self._api.request(f"CONSUMER.INFO.{self._jetstream_stream}.{consumer}")
                except ConsumerNotFoundError:
                    consumer = ""  # the reader is about to make another one
                else:
                    due = int(info["delivered"]["consumer_seq"]) + int(info["num_pending"])
            if consumer and self._flow.delivery >= due and not self._flow.broken:
                await self._until_quiet()
                return
            await asyncio.sleep(_LOOK)

    async def _until_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        deadline, last = loop.time() + _LONGEST_QUEUE, -1
        while self._flow.delivery != last and loop.time() < deadline:
            last = self._flow.delivery
            await asyncio.sleep(_NO_MORE)

    async def _ask(self) -> None:
        """See whether all that the consumer was to deliver has come."""
        self._asked_for = False
        if self._flow.delivery < self._due:
            self._flow.give_up()  # it has had the same time once more
            return
        try:
            info = await self._api.request(f"CONSUMER.INFO.{self._jetstream_stream}.{self._consumer}")
        except ConsumerNotFoundError:
            self._flow.give_up()
            return
        except (JetStreamError, CallTimeoutError, TransportError) as error:
            self._tell(error)
            self._await_quiet()
            return
        self._due = int(info["delivered"]["consumer_seq"]) + (info["num_pending"] > 0)
        if self._flow.delivery < self._due:
            self._await_quiet()

    def _tell(self, error: LiftEnvelopeError) -> None:
        if self._on_error is not None:
            self._on_error(error)

    # Binding

    async def _bind(self) -> None:
        """Have all that is not done delivered, to a new subscription by a new consumer."""
        self._is_certain = self._is_certain and self._link.epoch == self._epoch
        await self._unsubscribe()
        self._wanted.clear()
        inbox = self._link.new_inbox()
        name = self._consumer = ACK_CONSUMER + inbox.rpartition(".")[2]
        deleted = f"{_DELETED}.{self._jetstream_stream}.{name}"
        self._epoch = self._link.epoch
        for subject, handler in ((inbox, self._take), (deleted, self._on_deleted)):
            self._subscriptions.append(await subscribe_direct(self._nc, subject, handler))
        # What is delivered before the server knows of the subscription is lost.
        await self._link.barrier(_BARRIER)
        self._flow.begin(time.monotonic())
        others = await self._consumers()
        server = await self._create(name, inbox, await self._start(others))
        for other in others:
            await self._take_over(other)
        self._bound, self._is_certain = name, True
        self._unanswered.clear()
        if server:
            self._servers.add(server, self)

    async def _start(self, others: list[_Other]) -> int:
        """The sequence to begin at."""
        if not others:
            return 1 + self._done  # somebody has deleted the last consumer
        floors = [other.floor for other in others if other.floor is not None]
        if floors:
            return 1 + max(floors)
        begin = time.time_ns() - _ACK_AGAIN * _NS
        return await ask_start(self._api, self._jetstream_stream, begin)

    async def _consumers(self) -> list[_Other]:
        """The consumers of readers that there are."""
        names = consumer_names(self._api, self._jetstream_stream)
        found = [await self._other(name) async for name in names if name.startswith(ACK_CONSUMER)]
        return [other for other in found if other is not None]

    async def _other(self, name: str) -> _Other | None:
        try:
            info = await self._api.request(f"CONSUMER.INFO.{self._jetstream_stream}.{name}")
        except ConsumerNotFoundError:
            return None  # another reader was quicker
        except CallTimeoutError:
            self._unanswered[name] = self._unanswered.get(name, 0) + 1
            if self._unanswered[name] < _QUESTIONS:
                raise
            mine = name == self._bound and self._is_certain
            return _Other(name, self._done if mine else None, None)
        # A consumer that has had no acknowledgement yet knows of none before it, either.
        floor = max(info["ack_floor"]["stream_seq"], info["config"]["opt_start_seq"] - 1)
        return _Other(name, floor, info["config"]["deliver_subject"])

    async def _create(self, name: str, inbox: str, start: int) -> str:
        """Make the consumer; return the name of the server that holds it, empty if there is only one."""
        request = {"stream_name": self._jetstream_stream, "config": self._config(name, inbox, start)}
        info = await self._api.request(f"CONSUMER.CREATE.{self._jetstream_stream}.{name}", request)
        return str(info.get("cluster", {}).get("leader", ""))

    async def _take_over(self, other: _Other) -> None:
        """Delete a consumer, and let its reader know, which may have hung until now, or hang."""
        if other.inbox is None:
            # The server that would answer is lost. The others take the deletion, and it learns of it.
            subject = f"{self._api.prefix}.CONSUMER.DELETE.{self._jetstream_stream}.{other.name}"
            await self._api.send(subject, b"", reply=self._nc.new_inbox())
            return
        try:
            await self._api.request(f"CONSUMER.DELETE.{self._jetstream_stream}.{other.name}")
        except ConsumerNotFoundError:
            return
        size = len(_TAKEN_OVER)
        notice = b"HPUB %b %d %d\r\n%b\r\n" % (other.inbox.encode(), size, size, _TAKEN_OVER)
        self._link.write(notice, 1, size)

    async def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        self._done = max(self._done, self._flow.position)
        self._servers.remove(self)
        for subscription in subscriptions:
            await subscription.unsubscribe()
        self._settle()
        self._due, self._asked_for = 0, False
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None

    def _config(self, name: str, inbox: str, start: int) -> dict[str, Any]:
        return {
            "name": name,
            "durable_name": name,
            "description": "acks of a Liftbridge partition",
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": start,
            "ack_policy": "all",
            "ack_wait": _ACK_WAIT * _NS,
            "max_ack_pending": _MAX_PENDING,
            "max_deliver": -1,
            "num_replicas": 1,
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": int(self._heartbeat * _NS),
        }
