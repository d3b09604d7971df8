"""Which coordinators live, as one of them sees it, and which of them gets a group.

No I/O and no clock: sans-io. Every coordinator keeps a key in the KV bucket that it writes anew every third
of its lease, each time expecting the revision that it wrote last. It may act until a whole lease after it
*began* its last write that succeeded. Another coordinator that has seen one revision for a whole lease by its
own clock knows that this time is over, unless a write is on its way; so it deletes the key, expecting that
revision. Of the two, one succeeds. Whose key is gone has no lease: it begins a new incarnation.

That needs no agreement on what time it is, only that clocks run at about the same speed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Peer", "Peers"]


@dataclass(frozen=True, slots=True)
class Peer:
    """What a coordinator says of itself.

    Attributes:
        id: Its id.
        incarnation: Which life of it: another one after every loss of its lease.
        lease: How long it may act after a sign of life, in seconds.
        assignors: The names of those that it has.
    """

    id: str
    incarnation: str
    lease: float
    assignors: frozenset[str]


class Peers:
    """The coordinators that have a key.

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
        """All of them, in order of their ids."""
        return [peer for _, (_, peer, _) in sorted(self._seen.items())]

    def lives(self, coordinator_id: str, incarnation: str) -> bool:
        """Whether that life of a coordinator had a key when they were looked at last."""
        seen = self._seen.get(coordinator_id)
        return seen is not None and seen[1].incarnation == incarnation

    def observe(self, keys: Mapping[str, tuple[int, Peer]], now: float) -> list[tuple[str, int]]:
        """Take note of the keys that there are, each with its revision.

        Args:
            keys: Revision and content by id.
            now: The time, after they had come.

        Returns:
            The ids, and the revisions, of those that have been silent for their lease: to be deleted.
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
        """A coordinator's key was deleted."""
        self._seen.pop(coordinator_id, None)

    def choose(self, group: str, assignor: str) -> Peer | None:
        """Who should have a group: the same one for all who see the same peers, spread evenly over them."""
        able = [peer for peer in self.all if assignor in peer.assignors]
        return max(able, key=lambda peer: _weight(peer.id, group), default=None)


def _weight(coordinator_id: str, group: str) -> bytes:
    return hashlib.blake2b(group.encode(), key=hashlib.sha256(coordinator_id.encode()).digest()).digest()
