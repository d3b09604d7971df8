"""Leases of coordinators as seen by one of them, and the choice of a controller for a group.

Sans-io, without a clock. Every coordinator has a key in the KV bucket and rewrites it every third of its
lease, each time expecting the revision of its last write. It may act until a whole lease after it *began* its
last successful write. Another coordinator that has seen one revision for a whole lease, by its own clock,
knows that the lease is over, unless a write is in flight. It then deletes the key, expecting that revision.
Compare-and-set lets only one of the two succeed. A coordinator whose key is gone has no lease, and begins a
new incarnation.

Clocks need not agree on the time. They only need to run at about the same speed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Peer", "Peers"]


@dataclass(frozen=True, slots=True)
class Peer:
    """Record of a coordinator.

    Attributes:
        id: Id of the coordinator.
        incarnation: Incarnation of the coordinator; a new one after every loss of the lease.
        lease: Seconds for which the coordinator may act after the start of a write.
        assignors: Names of its assignors.
    """

    id: str
    incarnation: str
    lease: float
    assignors: frozenset[str]


class Peers:
    """Coordinators that have a key.

    Example:
        >>> peers = Peers()
        >>> one = Peer("one", "x", 2.0, frozenset({"sticky"}))
        >>> peers.observe({"one": (7, one)}, now=0.0)
        []
        >>> peers.choose("billing", "sticky")
        Peer(id='one', incarnation='x', lease=2.0, assignors=frozenset({'sticky'}))
        >>> peers.observe({"one": (7, one)}, now=2.0)
        [('one', 7)]
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, Peer, float]] = {}

    @property
    def all(self) -> list[Peer]:
        """All coordinators, sorted by id."""
        return [peer for _, (_, peer, _) in sorted(self._seen.items())]

    def lives(self, coordinator_id: str, incarnation: str) -> bool:
        """Return True if this incarnation of a coordinator had a key in the last observation."""
        seen = self._seen.get(coordinator_id)
        return seen is not None and seen[1].incarnation == incarnation

    def observe(self, keys: Mapping[str, tuple[int, Peer]], now: float) -> list[tuple[str, int]]:
        """Record the keys of an observation, each with its revision.

        Args:
            keys: Revision and content by id.
            now: Time after the keys were read, in seconds.

        Returns:
            Ids and revisions of the coordinators that were silent for their lease, whose keys must be
            deleted.
        """
        before, self._seen = self._seen, {}
        overdue = []
        for name, (revision, peer) in keys.items():
            since = before[name][2] if name in before and before[name][0] == revision else now
            self._seen[name] = revision, peer, since
            if now - since >= peer.lease:
                overdue.append((name, revision))
        return overdue

    def forget(self, coordinator_id: str) -> None:
        """Remove a coordinator whose key was deleted."""
        self._seen.pop(coordinator_id, None)

    def choose(self, group: str, assignor: str) -> Peer | None:
        """Return the coordinator that should control a group, by rendezvous hashing.

        All observers of the same peers choose the same coordinator, and groups spread evenly.
        """
        able = [peer for peer in self.all if assignor in peer.assignors]
        return max(able, key=lambda peer: _weight(peer.id, group), default=None)


def _weight(coordinator_id: str, group: str) -> bytes:
    return hashlib.blake2b(group.encode(), key=hashlib.sha256(coordinator_id.encode()).digest()).digest()
