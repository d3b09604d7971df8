"""What a partition holds, from a sequence on, as JetStream delivers it: raw, in order, without a gap.

A consumer without acks, in the server's memory, is pulled from. At most two pulls are open, so that what is
held here is bounded, and the next batch is on its way while one is sent. When deliveries are missing, when
the consumer is gone, or when its server is silent, another one is made that begins where this one was.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from liftenvelope.errors import (
    CallTimeoutError,
    LiftEnvelopeError,
    NoJetStreamError,
    StreamNotFoundError,
    TransportError,
)
from liftenvelope.nats._link import Link
from liftenvelope.nats._receiving import subscribe_direct

if TYPE_CHECKING:
    from liftenvelope.jetstream.context import JetStream
    from liftenvelope.nats._receiving import DirectSubscription

__all__ = ["Delivery", "PartitionFeed", "ask_start"]

#: What comes from a consumer: subject, reply, headers, payload.
Delivery: TypeAlias = tuple[str, bytes, bytes | None, bytes]

#: What one pull asks for: messages, and bytes.
_BATCH: Final = 4_096
_BYTES: Final = 2 << 20
_PULLS: Final = 2
_EXPIRES: Final = 30.0
_HEARTBEAT: Final = 5.0
#: After how much silence the consumer is taken for lost.
_SILENCE: Final = 2.5 * _HEARTBEAT
#: After how long without a pull the server drops the consumer, in seconds.
_INACTIVE: Final = 60.0
_NS: Final = 1_000_000_000
_PAUSE: Final = 0.25
#: Of the year 9999.
_LAST_SECOND: Final = 253_402_300_799
#: How often to look whether the consumer still lives, in seconds.
_LOOK: Final = 1.0
_REPLY_OF: Final = itemgetter(1)
#: What ends a pull that was served.
_ENDS: Final = (b"Batch Completed", b"MaxBytes")
#: $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ns>.<pending>; with a domain there are two more.
_TOKENS: Final = 9
_SEQUENCE_AT: Final = 5


async def ask_start(js: JetStream, stream: str, timestamp_ns: int) -> int:
    """Return the sequence of the first message that was stored at a time or later.

    That of the next message if all are older.

    Raises:
        StreamNotFoundError: There is no such stream.
    """
    seconds, rest = divmod(max(timestamp_ns, 0), _NS)
    moment = f"{_utc(seconds)}.{rest:09d}Z"
    name = secrets.token_hex(8)
    config = {**_config(name), "deliver_policy": "by_start_time", "opt_start_time": moment}
    # What it would deliver first tells: it is never pulled from.
    info = await _make(js, stream, name, config)
    await js.api.send(f"{js.api.prefix}.CONSUMER.DELETE.{stream}.{name}", b"", reply=js.api.nc.new_inbox())
    return int(info["delivered"]["stream_seq"]) + 1


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(min(seconds, _LAST_SECOND), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _config(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(_INACTIVE * _NS),
    }


async def _make(js: JetStream, stream: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
    body = {"stream_name": stream, "config": config, "action": "create"}
    return await js.api.request(f"CONSUMER.CREATE.{stream}.{name}", body)


class PartitionFeed:
    """Deliveries of one partition.

    Args:
        js: JetStream, on the connection to receive by.
        stream: The JetStream stream.
        sequence: Where to begin.

    Attributes:
        pending: How many messages there were to deliver when the present consumer was made.
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
        self._delivered = 0
        self._link = Link(self._nc)
        self._received: deque[list[Delivery]] = deque()
        # Messages that came, and how many of them were taken; how many had come when each pull was served
        # of which not all is taken. A pull is bounded in bytes, and so is what is held of some.
        self._came = self._taken = 0
        self._served: deque[int] = deque()
        self._pulls: set[bytes] = set()
        self._pull_number = 0
        self._heard = 0.0
        self._lost = False
        self._wakeup: asyncio.Future[None] | None = None
        self._reconnects = 0

    async def open(self) -> None:
        """Make the consumer, and pull.

        Raises:
            StreamNotFoundError: There is no such stream.
            LiftEnvelopeError: JetStream does not answer, or refuses.
        """
        self._subscription = await subscribe_direct(self._nc, f"{self._inbox}.*", self._on_messages)
        await self._begin()

    async def close(self) -> None:
        """Stop, and have the server forget the consumer."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        try:
            await subscription.unsubscribe()
            await self._forget_consumer()
        except TransportError:
            return  # the connection is gone, and the server drops the consumer by itself

    async def take(self) -> list[Delivery]:
        """Wait for the next deliveries; return them. It may be none: after :meth:`wake`, and now and then.

        Raises:
            StreamNotFoundError: The stream is gone.
            TransportError: The connection is closed.
        """
        if self._lost:
            await self._begin_anew()
        if not self._received:
            await self._wait()
            self._look()
        if self._lost or not self._received:
            return []
        messages = self._received.popleft()
        self._taken += len(messages)
        if not self._note(messages):
            self._lose()
            return []
        self._pull_if_room()
        return messages

    async def _wait(self) -> None:
        self._wakeup = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait([self._wakeup], timeout=_LOOK)
        finally:
            self._wakeup = None

    def _note(self, messages: list[Delivery]) -> bool:
        """Note how far the deliveries go. Returns whether they are the ones that were due."""
        first, last = messages[0][1].split(b"."), messages[-1][1].split(b".")
        at = _SEQUENCE_AT if len(first) == _TOKENS else _SEQUENCE_AT + 2
        begins, ends = int(first[at + 1]), int(last[at + 1])
        if begins != self._delivered + 1 or ends - begins + 1 != len(messages):
            return False
        self._next, self._delivered = int(last[at]) + 1, ends
        return True

    def wake(self) -> None:
        """Have :meth:`take` return, with or without deliveries."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _on_messages(self, raws: list[Delivery]) -> None:
        self._heard = asyncio.get_running_loop().time()
        # Statuses alone have no reply subject, and most of what is read has none of them.
        messages = raws if all(map(_REPLY_OF, raws)) else [raw for raw in raws if raw[1]]
        if messages:
            self._received.append(messages)
            self._came += len(messages)
            self.wake()
        if messages is not raws:
            for raw in raws:
                if not raw[1]:
                    self._on_status(raw)

    def _on_status(self, raw: Delivery) -> None:
        status = (raw[2] or b"")[9:12]
        number = raw[0].rpartition(".")[2].encode()
        if status == b"100":
            return
        self._pulls.discard(number)
        text = raw[2] or b""
        if status == b"408" or (status == b"409" and any(end in text for end in _ENDS)):
            self._served.append(self._came)
            self._pull_if_room()
        else:
            # The consumer is deleted, its server goes down or leads it no more, or nobody answers.
            self._lose()

    def _pull_if_room(self) -> None:
        while self._served and self._served[0] <= self._taken:
            self._served.popleft()
        if self._came - self._taken < _BATCH // 2 and len(self._served) < _PULLS:
            self._pull()

    def _pull(self) -> None:
        """Ask for more, as long as few enough are asked for already."""
        if self._subscription is None or self._lost or not self._nc.is_connected:
            return
        while len(self._pulls) < _PULLS:
            self._pull_number += 1
            number = b"%d" % self._pull_number
            self._pulls.add(number)
            request = {
                "batch": _BATCH,
                "max_bytes": max(_BYTES, 2 * self._nc.max_payload),
                "expires": int(_EXPIRES * _NS),
                "idle_heartbeat": int(_HEARTBEAT * _NS),
            }
            subject = f"{self._js.api.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
            self._send(subject, json.dumps(request).encode(), f"{self._inbox}.{self._pull_number}")

    def _send(self, subject: str, body: bytes, reply: str) -> None:
        head = f"PUB {subject} {reply} {len(body)}\r\n".encode()
        try:
            self._link.write(b"%b%b\r\n" % (head, body), 1, len(body))
        except TransportError:
            self._lose()

    def _look(self) -> None:
        """See whether the consumer still lives."""
        now = asyncio.get_running_loop().time()
        if self._nc.stats["reconnects"] != self._reconnects or now - self._heard > _SILENCE:
            self._lose()

    def _lose(self) -> None:
        self._lost = True
        self.wake()

    async def _begin(self) -> None:
        name = self._consumer = secrets.token_hex(8)
        self._reconnects = self._nc.stats["reconnects"]
        config = {**_config(name), "deliver_policy": "by_start_sequence", "opt_start_seq": max(self._next, 1)}
        info = await _make(self._js, self._stream, name, config)
        self.pending = int(info["num_pending"])
        self._delivered, self._lost = 0, False
        self._pulls.clear()
        self._heard = asyncio.get_running_loop().time()
        self._pull()

    async def _begin_anew(self) -> None:
        self._received.clear()
        self._served.clear()
        self._taken = self._came
        while True:
            if self._nc.is_closed:
                raise TransportError("the gateway's connection to NATS is closed")
            try:
                await self._begin()
            except StreamNotFoundError:
                raise
            except (NoJetStreamError, CallTimeoutError, TransportError):
                await asyncio.sleep(_PAUSE)
            else:
                return

    async def _forget_consumer(self) -> None:
        subject = f"{self._js.api.prefix}.CONSUMER.DELETE.{self._stream}.{self._consumer}"
        try:
            await self._js.api.send(subject, b"", reply=self._nc.new_inbox())
        except LiftEnvelopeError:
            return
