"""Lease keeper of a coordinator: renews its own lease and watches those of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from google.protobuf.message import DecodeError

from liftenvelope._pb import groups_pb2 as pb
from liftenvelope.errors import GroupError, WrongLastSequenceError
from liftenvelope.group._controller.leases import Peer, Peers
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.group._event_log import log
from liftenvelope.group.clock import time_since_boot
from liftenvelope.group.errors import CoordinatorIdInUseError
from liftenvelope.jetstream.bucket import BucketEntry

__all__ = ["KIND", "LeaseKeeper"]

#: First token of the keys of coordinators.
KIND: Final = "coordinator"
#: Fraction of a lease between two renewals.
_SHARE: Final = 1 / 3
_LONGEST_PAUSE: Final = 0.5
#: Leases to wait for another coordinator with the same id to end.
_PATIENCE: Final = 2


class LeaseKeeper:
    """Keeps the lease of one coordinator.

    The lease is valid for its length after the *start* of the last successful write, by
    :func:`time_since_boot`. The write may arrive later at the bucket, so other coordinators count from a
    later moment and never end the lease early.

    Args:
        store: The bucket.
        me: Record of the coordinator. Its incarnation is replaced by the keeper's.
        subject: Subject prefix of the coordinator.
        on_lost: Called after another coordinator took the lease. The keeper has a new incarnation by then.
        on_regained: Called after an expired lease, which no other coordinator had taken, was renewed.
        on_others_gone: Called at the start, and after other coordinators have gone.
    """

    def __init__(
        self,
        store: GroupStore,
        me: Peer,
        subject: str,
        *,
        on_lost: Callable[[], None],
        on_regained: Callable[[], None],
        on_others_gone: Callable[[], None],
    ) -> None:
        self.peers = Peers()
        self.incarnation = uuid4().hex
        self._store = store
        self._me = me
        self._subject = subject
        self._on_lost = on_lost
        self._on_regained = on_regained
        self._on_others_gone = on_others_gone
        self._key = f"{KIND}.{me.id}"
        self._revision = 0
        self._valid_until = float("-inf")
        self._known: set[tuple[str, str]] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_valid(self) -> bool:
        """True while the lease is valid, so that the coordinator may act."""
        return time_since_boot() < self._valid_until

    async def claim(self) -> None:
        """Claim the lease; if another coordinator has this id, wait for its lease to end.

        Raises:
            CoordinatorIdInUseError: The other coordinator keeps renewing its lease.
            GroupUnavailableError: JetStream did not answer.
        """
        watched = Peers()
        began = self._loop.time()
        while True:
            entry = await self._store.get(self._key)
            peer = _read(self._me.id, entry)
            is_free = peer is None or peer.incarnation == self.incarnation
            if peer is not None and not is_free:
                is_free = bool(watched.observe({peer.id: (entry.revision, peer)}, self._loop.time()))
            if is_free and await self._take(entry.revision):
                return
            if peer is not None and self._loop.time() - began > _PATIENCE * max(peer.lease, self._me.lease):
                raise CoordinatorIdInUseError(
                    f"the id {self._me.id!r} is in use by another coordinator; choose another one"
                )
            await asyncio.sleep(self._me.lease * _SHARE / 2)

    async def _take(self, revision: int) -> bool:
        began = time_since_boot()
        try:
            self._revision = await self._store.put(self._key, self._record(), revision)
        except WrongLastSequenceError:
            return False
        self._valid_until = began + self._me.lease
        return True

    async def keep(self) -> None:
        """Renew the lease and watch the other coordinators, until cancelled."""
        is_told = False
        while True:
            try:
                await self._renew()
                await self._look_around()
            except GroupError as exc:
                # The next successful write ends the problem. Until then the lease may expire, and no call is
                # served.
                if not (self.is_valid or is_told):
                    is_told = True
                    text = "coordinator %s: the lease has expired, retrying: %s"
                    log.warning(text, self._me.id, exc, extra={"coordinator_id": self._me.id})
                await asyncio.sleep(min(self._me.lease * _SHARE / 2, _LONGEST_PAUSE))
            else:
                is_told = False
                await asyncio.sleep(self._me.lease * _SHARE)

    async def give_up(self) -> None:
        """Delete the lease, so that others need not wait for its end.

        Raises:
            GroupUnavailableError: JetStream did not answer.
        """
        self._valid_until = float("-inf")
        revision = self._revision
        while True:
            try:
                await self._store.delete(self._key, revision)
            except WrongLastSequenceError:
                # Changed by a renewal that was cut off before its answer, or by another coordinator.
                entry = await self._store.get(self._key)
                peer = _read(self._me.id, entry)
                if peer is None or peer.incarnation != self.incarnation:
                    return
                revision = entry.revision
            else:
                return

    async def _renew(self) -> None:
        began = time_since_boot()
        try:
            self._revision = await self._store.put(self._key, self._record(), self._revision)
        except WrongLastSequenceError:
            await self._find_out()
            return
        had_run_out = began >= self._valid_until
        self._valid_until = began + self._me.lease
        if had_run_out:
            self._on_regained()

    async def _find_out(self) -> None:
        """Resolve a conflict: the key was changed by an own write without an answer, or by others."""
        entry = await self._store.get(self._key)
        peer = _read(self._me.id, entry)
        if peer is not None and peer.incarnation == self.incarnation:
            self._revision = entry.revision
            await self._renew()
            return
        self._valid_until = float("-inf")
        self.incarnation = uuid4().hex
        self._on_lost()
        self._known = None
        await self.claim()

    async def _look_around(self) -> None:
        entries = await self._store.all(KIND)
        keys = {
            name: (entry.revision, peer) for name, entry in entries.items() if (peer := _read(name, entry))
        }
        for name, revision in self.peers.observe(keys, self._loop.time()):
            if name == self._me.id:
                continue
            try:
                await self._store.delete(f"{KIND}.{name}", revision)
            except WrongLastSequenceError:
                continue  # renewed meanwhile
            self.peers.forget(name)
        known = {(peer.id, peer.incarnation) for peer in self.peers.all}
        if self._known is None or self._known - known:
            self._on_others_gone()
        self._known = known

    async def lives(self, coordinator_id: str, incarnation: str) -> bool:
        """Return True if this incarnation of a coordinator has its key, according to the bucket's leader.

        Raises:
            GroupUnavailableError: The key could not be read.
        """
        peer = _read(coordinator_id, await self._store.get(f"{KIND}.{coordinator_id}"))
        return peer is not None and peer.incarnation == incarnation

    def _record(self) -> bytes:
        return pb.CoordinatorRecord(
            id=self._me.id,
            incarnation=self.incarnation,
            subject=self._subject,
            lease_ms=round(self._me.lease * 1_000),
            assignors=sorted(self._me.assignors),
        ).SerializeToString()


def _read(name: str, entry: BucketEntry) -> Peer | None:
    """Parse a coordinator's record; None if there is none, or it can't be parsed."""
    if entry.value is None:
        return None
    try:
        record = pb.CoordinatorRecord.FromString(entry.value)
    except DecodeError:
        return None
    return Peer(name, record.incarnation, record.lease_ms / 1_000, frozenset(record.assignors))
