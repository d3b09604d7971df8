"""Reads a partition from a sequence on and yields JetStream's deliveries: raw, in order, without gaps.

The feed pulls from a memory-backed consumer without acks. A window bounds the bytes requested and held by one
reader, and a budget bounds the bytes requested by all readers of the connection
(:mod:`liftenvelope.gateway._partitions.pull_window`).

The invariant: deliveries are passed on only if their consumer sequences directly follow the last ones. If one
is missing, the consumer is gone or its server is silent, the feed counts as lost. It then deletes the
consumer and creates another one, which starts after the last message passed on.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerNotFoundError,
    LiftEnvelopeError,
    NoJetStreamError,
    StreamNotFoundError,
    TransportError,
)
from liftenvelope.gateway._partitions.consumer_slots import consumer_slots_of
from liftenvelope.gateway._partitions.pull_window import PullBudget, PullWindow
from liftenvelope.jetstream.abandoned import created_or_removed
from liftenvelope.jetstream.counting import on_leader
from liftenvelope.jetstream.lagging import server_of
from liftenvelope.nats.link import Link
from liftenvelope.nats.receiving import subscribe_direct

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.jetstream.api import Api
    from liftenvelope.jetstream.context import JetStream
    from liftenvelope.nats.receiving import DirectSubscription

__all__ = ["DeliveryFeed", "PartitionDelivery", "ask_start", "budget_of", "sequences_of", "stored_at"]

#: A message from a consumer: subject, reply, headers, payload.
PartitionDelivery: TypeAlias = tuple[str, bytes, bytes | None, bytes]

#: Maximum number of messages per pull.
_BATCH: Final = 4_096
_EXPIRES: Final = 30.0
_HEARTBEAT: Final = 5.0
#: Seconds of silence after which the consumer counts as lost.
_SILENCE: Final = 2.5 * _HEARTBEAT
_NS: Final = 1_000_000_000
_PAUSE: Final = 0.25
#: Bytes after which deliveries that came together are divided. A call that its client does not read holds
#: those that it took last.
_PIECE: Final = 32 * 1024
#: Last second of the year 9999, in seconds since 1970.
_LAST_SECOND: Final = 253_402_300_799
#: Seconds between two checks whether the consumer is alive.
_LOOK: Final = 1.0
_REPLY_OF: Final = itemgetter(1)
#: Status texts that end a served pull, and the header with the number of its unused bytes.
_ENDS: Final = (b"Batch Completed", b"MaxBytes")
_BYTES_LEFT: Final = re.compile(rb"nats-pending-bytes: *(\d+)", re.IGNORECASE)
#: Number of tokens in $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ns>.<pending>, and the index of
#: <sseq>. With a domain, two more tokens come before <stream>.
_TOKENS: Final = 9
_SEQUENCE_AT: Final = 5

#: Body of a pull request, with placeholders for its messages and its bytes.
_PULL: Final = b'{"batch":%%d,"expires":%d,"idle_heartbeat":%d,"max_bytes":%%d}' % (
    _EXPIRES * _NS,
    _HEARTBEAT * _NS,
)

_budgets: WeakKeyDictionary[Client, PullBudget] = WeakKeyDictionary()


class _Received(NamedTuple):
    """Deliveries that were not taken yet, and their size in bytes as the server counts it."""

    deliveries: list[PartitionDelivery]
    size: int


class _Pull(NamedTuple):
    """An open pull: bytes requested, and the part of them that comes from the shared budget."""

    amount: int
    shared: int


def sequences_of(deliveries: list[PartitionDelivery]) -> list[int]:
    """Return the stream sequences of deliveries."""
    if not deliveries:
        return []
    tokens = deliveries[0][1].count(b".") + 1
    at = _SEQUENCE_AT if tokens == _TOKENS else _SEQUENCE_AT + 2
    return [int(delivery[1].split(b".", at + 1)[at]) for delivery in deliveries]


def stored_at(delivery: PartitionDelivery) -> int:
    """Return the time at which a delivery was stored, in nanoseconds since 1970."""
    return int(delivery[1].rsplit(b".", 2)[1])


def budget_of(nc: Client) -> PullBudget:
    """Return the budget that all readers of a connection share."""
    return _budgets.setdefault(nc, PullBudget())


async def ask_start(api: Api, stream: str, timestamp_ns: int) -> int:
    """Return the sequence of the first message stored at a time or later.

    If all messages are older, this is the sequence of the next message.

    Args:
        api: JetStream's API.
        stream: Name of the JetStream stream.
        timestamp_ns: Time in nanoseconds since 1970.

    Raises:
        StreamNotFoundError: The stream does not exist.
        TransportError: The server placed no consumer on the stream's leader.
    """
    seconds, rest = divmod(max(timestamp_ns, 0), _NS)
    start = {"deliver_policy": "by_start_time", "opt_start_time": f"{_utc(seconds)}.{rest:09d}Z"}

    async def probe() -> tuple[int, str]:
        name = secrets.token_hex(8)
        # The consumer's start position is the answer. It is deleted without a pull.
        info = await _make(api, stream, name, _config(name, budget_of(api.nc).inactivity) | start)
        await _delete(api, stream, name)
        return int(info["delivered"]["stream_seq"]) + 1, server_of(info)

    return await on_leader(stream, partial(api.request_as, server_of, f"STREAM.INFO.{stream}"), probe)


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(min(seconds, _LAST_SECOND), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _config(name: str, inactivity: float) -> dict[str, Any]:
    return {
        "name": name,
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(inactivity * _NS),
    }


async def _make(api: Api, stream: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
    body = {"stream_name": stream, "config": config, "action": "create"}
    creating = api.request(f"CONSUMER.CREATE.{stream}.{name}", body)
    return await created_or_removed(creating, partial(_delete, api, stream, name))


async def _delete(api: Api, stream: str, name: str) -> None:
    """Delete a consumer, without waiting for the answer."""
    await api.send(f"{api.prefix}.CONSUMER.DELETE.{stream}.{name}", b"", reply=api.nc.new_inbox())


class DeliveryFeed:
    """Reads the deliveries of one partition.

    Args:
        js: JetStream, on the connection to receive messages on.
        stream: Name of the JetStream stream.
        sequence: Stream sequence to begin at.

    Attributes:
        pending: Number of messages left to deliver after those taken. Messages purged in the meantime count
            until :meth:`take` has waited for them in vain.
    """

    def __init__(self, js: JetStream, stream: str, sequence: int) -> None:
        self._js = js
        self._nc = js.api.nc
        self._stream = stream
        self._next = sequence
        self.pending = 0
        self._inbox = self._nc.new_inbox()
        self._subscription: DirectSubscription | None = None
        self._consumer = ""
        self._batch = _BATCH
        # True until the server has been asked for the number of messages left: see recount().
        self._must_recount = False
        self._delivered = 0
        self._link = Link(self._nc)
        self._received: deque[_Received] = deque()
        self._budget = budget_of(self._nc)
        self._window = PullWindow(asyncio.get_running_loop().time())
        self._pulls: dict[bytes, _Pull] = {}
        self._pull_number = 0
        # Number of the last pull from an earlier consumer.
        self._last_old_pull = 0
        # True while the feed waits in the budget's queue for its next pull.
        self._is_waiting = False
        self._heard = 0.0
        self._lost = False
        self._wakeup: asyncio.Future[None] | None = None
        self._reconnects = 0

    async def open(self) -> None:
        """Create the consumer and start to pull.

        Raises:
            StreamNotFoundError: The stream does not exist.
            LiftEnvelopeError: JetStream does not answer, or refuses.
        """
        self._subscription = await subscribe_direct(self._nc, f"{self._inbox}.*", self._on_messages)
        self._budget.readers += 1
        await self._begin()

    async def close(self) -> None:
        """Stop reading and delete the consumer. Closing twice is fine."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        self._budget.readers -= 1
        self._end_pulls()
        self._drop_received()
        try:
            await subscription.unsubscribe()
            await self._forget_consumer()
        except TransportError:
            return  # the connection is gone, and the server drops the consumer by itself

    async def take(self) -> list[PartitionDelivery]:
        """Wait for the next deliveries and return them.

        The list is empty after :meth:`wake`, after a second without a delivery, and if the consumer is lost.

        Raises:
            StreamNotFoundError: The stream is gone.
            TransportError: The connection is closed.
        """
        if self._lost:
            await self._begin_anew()
        if not (self._received or self._lost):
            woken = await self._wait()
            self._look()
            if self.pending and not (woken or self._lost):
                await self._recount()
        if self._lost or not self._received:
            return []
        messages, size = self._received.popleft()
        self._budget.held -= size
        self._window.taken(size, asyncio.get_running_loop().time())
        if not self._note(messages):
            self._lose()
            return []
        self._pull_if_room()
        return messages

    async def _wait(self) -> bool:
        """Wait for deliveries or :meth:`wake`, for at most ``_LOOK`` seconds; return False on timeout."""
        self._wakeup = asyncio.get_running_loop().create_future()
        try:
            done, _ = await asyncio.wait([self._wakeup], timeout=_LOOK)
        finally:
            self._wakeup = None
        return bool(done)

    async def _recount(self) -> None:
        """Ask the server how many messages are left, because purged messages are never delivered.

        Messages that the server has delivered but that did not arrive are lost. A new consumer delivers them.
        """
        try:
            info = await self._js.api.request(f"CONSUMER.INFO.{self._stream}.{self._consumer}", {})
        except StreamNotFoundError:
            raise
        except (ConsumerNotFoundError, NoJetStreamError, CallTimeoutError, TransportError):
            self._lose()
            return
        on_the_way = int(info["delivered"]["consumer_seq"]) - self._delivered
        self.pending, self._must_recount = int(info["num_pending"]) + on_the_way, False
        if on_the_way and not self._received:
            self._lose()

    def _note(self, messages: list[PartitionDelivery]) -> bool:
        """Record the last sequences of the deliveries; return False if they do not follow the last ones."""
        first, last = messages[0][1].split(b"."), messages[-1][1].split(b".")
        at = _SEQUENCE_AT if len(first) == _TOKENS else _SEQUENCE_AT + 2
        begins, ends = int(first[at + 1]), int(last[at + 1])
        if begins != self._delivered + 1 or ends - begins + 1 != len(messages):
            return False
        self._next, self._delivered = int(last[at]) + 1, ends
        self.pending = max(int(last[at + 3]), self._must_recount)
        return True

    def recount(self) -> None:
        """Ask the server how many messages are left, once none has come for a second.

        Until then, deliveries received earlier don't count as the last ones.
        """
        self._must_recount = True
        self.pending = max(self.pending, 1)

    def replace_consumer(self) -> None:
        """Read on through another consumer, as the replica of this one lags."""
        self._lose()

    def wake(self) -> None:
        """Make a waiting :meth:`take` return, with or without deliveries."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _on_messages(self, raws: list[PartitionDelivery]) -> None:
        self._heard = asyncio.get_running_loop().time()
        # Only statuses have no reply subject. Most batches contain no status, so this check is fast.
        messages = raws if all(map(_REPLY_OF, raws)) else [raw for raw in raws if raw[1]]
        if messages:
            self._arrived(messages)
        if messages is not raws:
            for raw in raws:
                if not raw[1]:
                    self._on_status(raw)

    def _arrived(self, messages: list[PartitionDelivery]) -> None:
        start = size = done = largest = 0
        for number, (subject, reply, headers, payload) in enumerate(messages, 1):
            one = len(reply) + len(payload) + (len(subject) if subject.isascii() else len(subject.encode()))
            if headers:
                one += len(headers)
            largest = max(largest, one)
            size += one
            if size >= _PIECE or number == len(messages):
                self._received.append(_Received(messages[start:number], size))
                start, size, done = number, 0, done + size
        self._window.arrived(done, largest)
        self._budget.held += done
        if self._window.asked <= 0:
            self._end_pulls()
        self.wake()

    def _on_status(self, raw: PartitionDelivery) -> None:
        token = raw[0].rpartition(".")[2]
        if not token.isdecimal() or int(token) <= self._last_old_pull:
            return  # a pull from an earlier consumer
        text = raw[2] or b""
        status = text[9:12]
        if status == b"100":
            return
        expired = status == b"408"
        if not (expired or (status == b"409" and any(end in text for end in _ENDS))):
            # The consumer is deleted, its server stops or no longer leads it, or there are no responders.
            self._lose()
            return
        pull = self._pulls.pop(token.encode(), None)
        if pull is None:
            return  # it has ended already
        found = _BYTES_LEFT.search(text)
        left = int(found[1]) if found else 0
        self._window.ended(pull.amount, left, expired=expired)
        if not expired and left == pull.amount:
            self.pending = max(self.pending, 1)  # the next message did not fit into the pull
        self._budget.release(pull.shared)
        if not self._pulls or self._window.asked <= 0:
            self._end_pulls()
        self._pull_if_room()

    def _drop_received(self) -> None:
        self._budget.held -= sum(received.size for received in self._received)
        self._received.clear()

    def _end_pulls(self) -> None:
        """Count all pulls as ended, and return their bytes to the budget."""
        pulls, self._pulls = self._pulls, {}
        self._window.asked = 0
        self._budget.release(sum(pull.shared for pull in pulls.values()))

    @property
    def _can_pull(self) -> bool:
        return self._subscription is not None and not self._lost and bool(self._nc.is_connected)

    def _pull_if_room(self) -> None:
        """Pull more if the window is at least half empty, as far as the budget allows.

        A reader without pending messages pulls only a small amount outside of the shared budget. Such a pull
        may stay open for a long time, and must not take bytes of the budget from other readers.
        """
        window, budget = self._window, self._budget
        if self._is_waiting or not self._can_pull:
            return
        if window.wanted and not window.asked and (window.largest <= budget.small or not self.pending):
            self._pull(min(window.wanted, budget.small), 0)
        if self.pending and (wanted := window.wanted):
            least = window.least
            if taken := budget.take(least, max(wanted, least)):
                self._pull(taken, taken)
            elif not window.asked:
                self._is_waiting = True
                budget.wait(least, self._on_given)

    def _on_given(self, amount: int) -> None:
        """Pull an amount that the budget has granted after a wait."""
        self._is_waiting = False
        if self._can_pull:
            self._pull(amount, amount)
        else:
            self._budget.release(amount)

    def _pull(self, amount: int, shared: int) -> None:
        self._pull_number += 1
        self._pulls[b"%d" % self._pull_number] = _Pull(amount, shared)
        self._window.pulled(amount)
        subject = f"{self._js.api.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        self._send(subject, _PULL % (self._batch, amount), f"{self._inbox}.{self._pull_number}")

    def _send(self, subject: str, body: bytes, reply: str) -> None:
        head = f"PUB {subject} {reply} {len(body)}\r\n".encode()
        try:
            self._link.write(b"%b%b\r\n" % (head, body), 1, len(body))
        except TransportError:
            self._lose()

    def _look(self) -> None:
        """Count the consumer as lost after a reconnect, or if it has been silent for too long."""
        now = asyncio.get_running_loop().time()
        if self._nc.stats["reconnects"] != self._reconnects or now - self._heard > _SILENCE:
            self._lose()

    def _lose(self) -> None:
        self._lost = True
        self.wake()

    async def _begin(self) -> None:
        name = secrets.token_hex(8)
        self._reconnects = self._nc.stats["reconnects"]
        config = _config(name, self._budget.inactivity)
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(self._next, 1)}
        info = await _make(self._js.api, self._stream, name, config)
        self._consumer = name
        # nats-server gives its max_request_batch to each consumer, and refuses larger pulls.
        self._batch = min(_BATCH, int(info["config"].get("max_batch", 0)) or _BATCH)
        self.pending, self._must_recount = int(info["num_pending"]), False
        # Messages received so far are from the last consumer.
        self._drop_received()
        self._window.forget()
        self._delivered, self._lost, self._last_old_pull = 0, False, self._pull_number
        self._heard = asyncio.get_running_loop().time()
        self._pull_if_room()

    async def _begin_anew(self) -> None:
        """Replace the lost consumer. If that fails for now, pause; the feed is still lost."""
        self._end_pulls()
        if self._nc.is_closed:
            raise TransportError("the gateway's connection to NATS is closed")
        if not self._nc.is_connected:  # nats-py would buffer the requests of each attempt and send them all
            await asyncio.sleep(_PAUSE)
            return
        try:
            async with consumer_slots_of(self._nc).taken():
                await self._forget_consumer()
                await self._begin()
        except StreamNotFoundError:
            raise
        except (NoJetStreamError, CallTimeoutError, TransportError):
            await asyncio.sleep(_PAUSE)

    async def _forget_consumer(self) -> None:
        name, self._consumer = self._consumer, ""
        try:
            if name:
                await _delete(self._js.api, self._stream, name)
        except LiftEnvelopeError:
            return
