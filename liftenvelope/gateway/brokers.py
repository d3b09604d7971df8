"""Which gateways there are, and which of them leads a partition.

Every gateway writes itself into a bucket again and again. Who was not heard of for a while is taken for dead.
The leader of a partition is the one of the living that a hash of both puts highest (rendezvous hashing): all
gateways that see the same ones alive agree without asking, and the death of one moves its partitions alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import CallTimeoutError, InternalError, LiftEnvelopeError
from liftenvelope.gateway.buckets import Bucket, Entry, Mirror
from liftenvelope.gateway.names import encode_name

if TYPE_CHECKING:
    from liftenvelope.jetstream.context import JetStream

__all__ = ["Broker", "Brokers", "leader_of"]

BUCKET: Final = "lift_brokers"
#: How many times a gateway is written while it counts as living.
_BEATS: Final = 3
#: How long to try to let the others know that a gateway goes, in seconds.
_FAREWELL: Final = 1.0


@dataclass(frozen=True, slots=True)
class Broker:
    """A gateway.

    Attributes:
        id: Its id.
        host: Where clients reach it.
        port: Likewise.
    """

    id: str
    host: str
    port: int


def leader_of(stream: str, partition: int, brokers: Iterable[str]) -> str:
    """Return the id of the broker that leads a partition, of those that live; empty if there is none.

    Example:
        >>> leader_of("orders", 0, ["a", "b", "c"]) in ("a", "b", "c")
        True
    """
    key = f"\0{partition}\0{stream}".encode()
    return max(brokers, key=lambda id_: (hashlib.blake2b(id_.encode() + key).digest(), id_), default="")


class Brokers:
    """The gateways that live.

    Args:
        js: JetStream.
        me: Id of this gateway.
        ttl: After how many seconds of silence a gateway is taken for dead.
        on_change: Called when one came or went.
        replicas: How many servers keep the bucket.
    """

    def __init__(
        self, js: JetStream, me: str, *, ttl: float, on_change: Callable[[], None], replicas: int = 1
    ) -> None:
        self._bucket = Bucket(js, BUCKET)
        self._mirror = Mirror(self._bucket, self._on_entry)
        self.me = me
        self._ttl = ttl
        self._replicas = replicas
        self._on_change = on_change
        self._alive: dict[str, Broker] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None
        self._leaders: dict[tuple[str, int], str] = {}

    @property
    def alive(self) -> dict[str, Broker]:
        """The gateways that live, by id; from :meth:`join` on this one is among them."""
        return self._alive

    def leader(self, stream: str, partition: int) -> str:
        """Id of the gateway that leads a partition."""
        found = self._leaders.get((stream, partition))
        if found is None:
            found = self._leaders[stream, partition] = leader_of(stream, partition, self._alive)
        return found

    def leads(self, stream: str, partition: int) -> bool:
        """Whether this gateway leads a partition."""
        return self.leader(stream, partition) == self.me

    async def start(self) -> None:
        """Learn of the others, and go on to."""
        await self._bucket.create(replicas=self._replicas, ttl=self._ttl)
        await self._mirror.start()

    async def join(self, broker: Broker) -> None:
        """Count this gateway among the living, and let the others know of it."""
        self._alive[self.me] = broker
        self._changed()
        await self._beat()
        self._task = asyncio.create_task(self._keep_alive(), name="keep the gateway alive")

    async def close(self) -> None:
        """Let the others know that this one goes, if there is still a way to."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            # Else they notice soon.
            with contextlib.suppress(LiftEnvelopeError, TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await self._bucket.delete(encode_name(self.me))
        await self._mirror.close()
        for timer in self._timers.values():
            timer.cancel()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._ttl / _BEATS)
            # The others take this one for dead if that lasts, which it may be for them.
            with contextlib.suppress(LiftEnvelopeError):
                await self._beat()

    async def _beat(self) -> None:
        value = json.dumps(asdict(self._alive[self.me])).encode()
        try:
            async with asyncio.timeout(self._ttl):
                await self._bucket.put(encode_name(self.me), value)
        except TimeoutError as exc:
            raise CallTimeoutError(f"JetStream stored nothing within {self._ttl} s") from exc

    def _on_entry(self, entry: Entry) -> None:
        if (timer := self._timers.pop(entry.key, None)) is not None:
            timer.cancel()
        if entry.value is None:
            self._forget(entry.key)
            return
        try:
            broker = Broker(**json.loads(entry.value))
        except (ValueError, TypeError) as exc:
            raise InternalError(f"a gateway's record can't be read: {exc}: {entry.value[:80]!r}") from exc
        if broker.id == self.me:
            return
        loop = asyncio.get_running_loop()
        self._timers[entry.key] = loop.call_later(self._ttl, self._forget, entry.key)
        if self._alive.get(broker.id) != broker:
            self._alive[broker.id] = broker
            self._changed()

    def _forget(self, key: str) -> None:
        self._timers.pop(key, None)
        for id_ in [id_ for id_ in self._alive if encode_name(id_) == key and id_ != self.me]:
            del self._alive[id_]
            self._changed()

    def _changed(self) -> None:
        self._leaders.clear()
        self._on_change()
