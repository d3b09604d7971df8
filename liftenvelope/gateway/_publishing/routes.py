"""Routes of a PublishAsync call: the partitions whose messages take the fast path.

A route is valid while the record of its stream is the one that it was made for, and while enough replicas are
in sync. This is checked before each batch, and a call may have thousands of routes. So the records are
compared only after a change of any record, and the replicas are counted only for streams with ``minIsr``. A
route that is not valid is dropped alone: the next message of its partition waits for its ack, and those of
other partitions must not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from liftenvelope.gateway._partitions.replicas import least_in_sync

if TYPE_CHECKING:
    from liftenvelope._native import gate
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._publishing.targets import PublishTarget

__all__ = ["Routes"]


class Routes:
    """The routes of one call.

    Args:
        core: The gateway's parts.
        pipe: Fast path of the call.
    """

    def __init__(self, core: Core, pipe: gate.PublishPipe) -> None:
        self._core = core
        self._pipe = pipe
        # Targets with a route, by stream and partition, and those that need replicas in sync.
        self._open: dict[tuple[str, int], PublishTarget] = {}
        self._guarded: dict[tuple[str, int], PublishTarget] = {}
        # Keys of ``_open`` by the subject that is published on. Clients may cause refusals at will, and all
        # calls look up each of them.
        self._on: dict[str, set[tuple[str, int]]] = {}
        # Targets that had a route, while messages without an ack may have taken it.
        self._closed: dict[tuple[str, int], PublishTarget] = {}
        self._seen = core.registry.changes
        # JetStream's domain in the acks, empty before the first ack.
        self._domain = ""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield the streams and partitions that have a route."""
        return iter(self._open)

    def target(self, stream: str, partition: int) -> PublishTarget | None:
        """Return the last target of a partition, for acks that may come after its route was dropped."""
        key = (stream, partition)
        return self._open.get(key) or self._closed.get(key)

    def is_wanted(self, target: PublishTarget) -> bool:
        """Return whether the target may use the fast path and has no route yet.

        The fast path neither checks expected offsets nor waits for the offset of a message in a copy.
        """
        record = target.record
        is_plain = not (record.checks_offsets or target.is_copy) and self._has_replicas(target)
        return is_plain and (record.name, target.partition) not in self._open

    def add(self, target: PublishTarget) -> None:
        """Open the fast path for a partition."""
        record, partition = target.record, target.partition
        self._open[record.name, partition] = target
        self._on.setdefault(target.intake, set()).add((record.name, partition))
        if least_in_sync(record):
            self._guarded[record.name, partition] = target
        names = (record.name, partition, record.subject, target.subject, target.stream)
        self._pipe.route(*names, domain=self._domain)

    def expect_domain(self, domain: str) -> None:
        """Take acks of a JetStream domain for plain ones from now on."""
        if domain != self._domain:
            self._domain = domain
            for target in self._open.values():
                self.add(target)

    def drop_outdated(self) -> None:
        """Drop the routes whose stream has another record by now, or too few replicas in sync."""
        if not self._pipe.pending:
            self._closed.clear()
        outdated = [key for key, target in self._guarded.items() if not self._has_replicas(target)]
        changes, before = self._core.registry.changes, self._seen
        if changes != before:
            self._seen = changes
            outdated += [key for key, target in self._open.items() if not self._is_current(target)]
        for key in outdated:
            self.drop(*key)

    def drop(self, stream: str, partition: int) -> None:
        """Drop the route of a partition, if it has one: the next message there takes the slow path."""
        target = self._open.pop((stream, partition), None)
        if target is not None:
            self._closed[stream, partition] = target
            if keys := self._on.pop(target.intake) - {(stream, partition)}:
                self._on[target.intake] = keys
            self._guarded.pop((stream, partition), None)
            self._pipe.close_route(stream, partition)

    def drop_refused(self, subjects: Mapping[str, int]) -> None:
        """Drop the routes on subjects that NATS refuses: only the slow path can tell the client."""
        for subject in subjects:
            for key in self._on.get(subject, ()):
                self.drop(*key)

    def _is_current(self, target: PublishTarget) -> bool:
        return self._core.registry.known(target.record.name) is target.record

    def _has_replicas(self, target: PublishTarget) -> bool:
        """Return whether messages with ``ALL`` may be acked on the fast path."""
        return self._core.storage.replicas.are_enough(target.record, target.partition)
