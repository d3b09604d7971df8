"""Membership of gateways, and leader election for partitions.

Every gateway writes its own entry to a bucket at intervals (a beat). A gateway without a new beat for the TTL
counts as dead. The leader of a partition is the live gateway with the highest hash of gateway and partition
(rendezvous hashing). Gateways that see the same members alive agree on leaders without communication, and the
death of one gateway moves only its own partitions.

A gateway that the others may consider dead must not lead. :class:`~liftenvelope.gateway._cluster.lease.Lease`
decides that locally, from the gateway's own beats.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.consumers.tasks import background, cancel
from liftenvelope.errors import (
    CallTimeoutError,
    InternalError,
    JetStreamError,
    LiftEnvelopeError,
    TransportError,
    WrongLastSequenceError,
)
from liftenvelope.gateway._cluster.lease import Lease
from liftenvelope.gateway._cluster.mirror import Mirror
from liftenvelope.gateway._cluster.stored_json import check_fields, read_stored
from liftenvelope.gateway._protocol.failures import has_no_room
from liftenvelope.gateway._protocol.names import encode_name
from liftenvelope.group.clock import time_since_boot
from liftenvelope.jetstream.bucket import Bucket, BucketEntry

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftenvelope.jetstream.context import JetStream

__all__ = ["Broker", "LiveBrokers", "leader_of"]

_log: Final = logging.getLogger("liftenvelope.gateway")
BUCKET: Final = "lift_brokers"
#: Number of beats per TTL.
_BEATS: Final = 3
#: Seconds to spend on announcing to the others that this gateway leaves.
_FAREWELL: Final = 1.0
#: Bounds of the bucket consumer's heartbeat, in seconds. Its loss must be noticed within the TTL.
_SHORTEST_HEARTBEAT, _LONGEST_HEARTBEAT = 0.5, 2.0
#: Leaders that are remembered. Clients may create and delete streams of any number of names.
_MOST_LEADERS: Final = 200_000
#: Pause after a beat that failed, in seconds.
_RETRY: Final = 0.1


@dataclass(frozen=True, slots=True)
class Broker:
    """A gateway in its role as a broker of the Liftbridge cluster.

    Attributes:
        id: Broker id.
        host: Host that clients connect to.
        port: Port that clients connect to.
    """

    id: str
    host: str
    port: int


def _broker(found: dict[str, Any]) -> Broker:
    broker = Broker(**check_fields(Broker, found))
    if not 0 <= broker.port < 1 << 16:
        raise ValueError(f"port must be from 0 to 65535, got {broker.port}")
    return broker


def leader_of(stream: str, partition: int, brokers: Iterable[str]) -> str:
    """Return the id of the broker that leads a partition; empty if ``brokers`` is empty.

    Args:
        stream: Name of the stream.
        partition: Number of the partition.
        brokers: Ids of the live brokers.

    Example:
        >>> leader_of("orders", 0, ["a", "b", "c"]) in ("a", "b", "c")
        True
    """
    key = f"\0{partition}\0{stream}".encode()
    return max(brokers, key=lambda id_: (hashlib.blake2b(id_.encode() + key).digest(), id_), default="")


class LiveBrokers:
    """The live gateways, and this gateway's lease to lead partitions.

    Args:
        js: JetStream.
        me: Id of this gateway.
        ttl: Seconds of silence after which a gateway counts as dead.
        on_change: Called when a gateway has come or gone.
        on_interrupted: Called when another gateway may have led this gateway's partitions in between. All
            work as a leader must end before this callback returns.
        connections: The gateway's connections. While one of them is lost, the gateway sends no heartbeats.
        replicas: Number of replicas of the bucket. Default 1.
    """

    def __init__(
        self,
        js: JetStream,
        me: str,
        *,
        ttl: float,
        on_change: Callable[[], None],
        on_interrupted: Callable[[], None],
        connections: Iterable[Client],
        replicas: int = 1,
    ) -> None:
        self._connections = tuple(connections)
        self._bucket = Bucket(js, BUCKET, replicas=replicas, ttl=ttl)
        heartbeat = min(max(ttl / _BEATS, _SHORTEST_HEARTBEAT), _LONGEST_HEARTBEAT)
        self._mirror = Mirror(self._bucket, self._on_entry, heartbeat=heartbeat)
        self._following = contextlib.AsyncExitStack()
        self.me = me
        self._ttl = ttl
        self._on_change = on_change
        self._on_interrupted = on_interrupted
        self._alive: dict[str, Broker] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None
        self._leaders: dict[tuple[str, int], str] = {}
        self._lease = Lease(ttl)
        self._left = False
        # Whether the log says that this gateway has its lease; None before the first one.
        self._told_lease: bool | None = None
        # Set when the lease is extended, and when this gateway leaves.
        self._regained = asyncio.Event()
        # Time since which all own beats were stored, by the lease's clock; infinite after a failed beat.
        self._heard_since = -math.inf

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self._bucket.name

    @property
    def is_readable(self) -> bool:
        """True while this gateway has read the whole bucket and follows its changes."""
        return self._mirror.is_following

    @property
    def alive(self) -> dict[str, Broker]:
        """Live gateways by id, including this one after :meth:`join`."""
        return self._alive

    @property
    def has_lease(self) -> bool:
        """True while this gateway's lease is valid, so that it may lead."""
        return self._lease.is_valid

    def leader(self, stream: str, partition: int) -> str:
        """Return the id of the gateway that leads a partition, as far as this gateway knows."""
        found = self._leaders.get((stream, partition))
        if found is None:
            if len(self._leaders) >= _MOST_LEADERS:
                self._leaders.clear()  # most are of deleted streams
            found = self._leaders[stream, partition] = leader_of(stream, partition, self._alive)
        return found

    def is_leader(self, stream: str, partition: int) -> bool:
        """Return True if this gateway is the elected leader of a partition, with or without a valid lease."""
        return self.leader(stream, partition) == self.me

    def leads(self, stream: str, partition: int) -> bool:
        """Return True if this gateway leads a partition now: it is elected and its lease is valid."""
        return self._lease.is_valid and self.is_leader(stream, partition)

    async def lease(self) -> bool:
        """Wait until this gateway may lead; return False if it has left.

        If the lease is valid, this returns at once, without a switch to another task.
        """
        while not (self._left or self._lease.is_valid):
            self._regained.clear()
            await self._regained.wait()
        return not self._left

    async def start(self) -> None:
        """Create the bucket if needed, read the other gateways, and follow their changes."""
        await self._bucket.create()
        await self._following.enter_async_context(self._mirror.running())

    async def join(self, broker: Broker) -> None:
        """Add this gateway to the live ones, announce it to the others, and wait for the lease.

        Raises:
            CallTimeoutError: The first beat was not read back within the TTL.
            LiftEnvelopeError: JetStream did not store the beat.
        """
        self._alive[self.me] = broker
        self._changed()
        await self._beat()
        self._task = background(self._keep_alive(), name="keep the gateway alive", log=_log)
        try:
            async with asyncio.timeout(self._ttl):
                await self.lease()
        except TimeoutError as exc:
            raise CallTimeoutError(
                f"the bucket {BUCKET} did not deliver this gateway's own entry within {self._ttl} s"
            ) from exc

    async def leave(self) -> None:
        """Give up the lease, and announce that to the others if NATS answers. Leaving twice is fine."""
        if self._left:
            return
        self._left = True
        self._regained.set()
        self._lease.end()
        if self._task is not None:
            await cancel([self._task])
        if self.me not in self._alive:
            return  # never announced
        # If this fails, the others notice after the TTL.
        with contextlib.suppress(LiftEnvelopeError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._bucket.delete(encode_name(self.me))

    async def close(self) -> None:
        """Leave, and stop following the other gateways."""
        await self.leave()
        await self._following.aclose()
        for timer in self._timers.values():
            timer.cancel()

    async def _keep_alive(self) -> None:
        pause = self._ttl / _BEATS
        while True:
            await asyncio.sleep(pause)
            pause = self._ttl / _BEATS
            try:
                await self._beat()
            except LiftEnvelopeError as exc:
                # If this lasts, the lease expires and the others consider this gateway dead.
                self._heard_since = math.inf
                self._tell_lease(f": {exc}")
                if not has_no_room(exc):
                    pause = min(pause, _RETRY)
            else:
                self._heard_since = min(self._heard_since, time_since_boot())
                if not self._lease.is_valid:
                    # The answer came so late that the beat's time is over, and nothing is led until the next.
                    pause = min(pause, _RETRY)

    async def _beat(self) -> None:
        if not all(nc.is_connected for nc in self._connections):
            # nats-py would buffer the beat and send it after reconnecting, when it proves nothing.
            raise TransportError("a connection to NATS is lost")
        value = json.dumps(asdict(self._alive[self.me])).encode()
        began = time_since_boot()
        try:
            async with asyncio.timeout(self._ttl):
                revision, continuous = await self._write(value)
        except TimeoutError as exc:
            raise CallTimeoutError(
                f"JetStream did not store this gateway's entry within {self._ttl} s"
            ) from exc
        except JetStreamError as exc:
            if has_no_room(exc):
                self._lease.refused(began=began)
            raise
        self._note(self._lease.stored(revision, began=began, continuous=continuous))

    async def _write(self, value: bytes) -> tuple[int, bool]:
        """Write a beat; return its revision and whether it directly follows this gateway's last beat.

        The compare-and-set on the bucket's last revision proves that no other gateway wrote in between. It is
        used only while this gateway is the only live one, because others write to the bucket all the time.
        """
        key = encode_name(self.me)
        if self._lease.revision and len(self._alive) == 1:
            try:
                return await self._bucket.put(key, value, bucket_revision=self._lease.revision), True
            except WrongLastSequenceError:
                pass  # another gateway has joined, or an own beat was stored but its answer lost
        return await self._bucket.put(key, value), False

    def _note(self, interrupted: bool) -> None:
        if interrupted:
            if self._told_lease:  # the lease ended unnoticed, for example while the process was stopped
                text = "gateway %s had lost its lease: another gateway may have led its partitions"
                _log.warning(text, self.me, extra={"gateway": self.me})
            self._on_interrupted()
        if self._lease.is_valid:
            self._regained.set()
        self._tell_lease()

    def _tell_lease(self, reason: str = "") -> None:
        """Log that this gateway has got, lost or regained its lease, if that is new."""
        before, has_lease = self._told_lease, self._lease.is_valid
        if has_lease is bool(before):
            return
        self._told_lease, named = has_lease, {"gateway": self.me}
        if not has_lease:
            text = (
                "gateway %s has lost its lease: it leads no partitions until JetStream stores a heartbeat%s"
            )
            _log.warning(text, self.me, reason, extra=named)
        elif before is None:
            _log.info("gateway %s has its lease", self.me, extra=named)
        else:
            _log.warning("gateway %s has its lease again", self.me, extra=named)

    def _on_entry(self, entry: BucketEntry) -> None:
        if entry.value is None:
            self._forget(entry.key, logging.INFO, "has left")
            return
        broker = read_stored(_broker, entry.value, "the entry of a gateway")
        if encode_name(broker.id) != entry.key:
            raise InternalError(f"the entry of gateway {broker.id!r:.40} has the key {entry.key!r:.40}")
        if broker.id == self.me:
            self._note(self._lease.read_back(entry.revision))
            return
        self._stop_timer(entry.key)
        self._expire_later(entry.key, self._ttl)
        if self._alive.get(broker.id) != broker:
            text = "gateway %s at %s:%d is alive"
            _log.info(text, broker.id, broker.host, broker.port, extra={"gateway": broker.id})
            self._alive[broker.id] = broker
            self._changed()

    def _stop_timer(self, key: str) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    def _expire_later(self, key: str, seconds: float) -> None:
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self._expire, key)

    def _expire(self, key: str) -> None:
        if self._lease.is_fresh and time_since_boot() - self._heard_since >= self._ttl:
            self._forget(key, logging.WARNING, f"is dead: silent for {self._ttl} s")
        else:
            # Silence proves that the other gateway is dead only if this one has stored and read back its own
            # beats for a whole TTL. Otherwise entries may be late, or no gateway could write.
            self._expire_later(key, self._ttl / (2 * _BEATS))

    def _forget(self, key: str, level: int, why: str) -> None:
        self._stop_timer(key)
        for id_ in [id_ for id_ in self._alive if encode_name(id_) == key and id_ != self.me]:
            _log.log(level, "gateway %s %s", id_, why, extra={"gateway": id_})
            del self._alive[id_]
            self._changed()

    def _changed(self) -> None:
        self._leaders.clear()
        self._on_change()
