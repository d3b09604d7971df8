"""Offset keys of a group: committed offsets that are newer than the group's record.

A commit writes one key, with the offsets that changed and a few more, instead of the record with all
offsets. So a commit is still one message, which is stored as a whole or not at all.

**Content.** The record has the offsets of all partitions as of ``offsets_revision``. Only keys with a higher
revision count, in the order of their revisions. Every write of the record includes all offsets, so after it
the keys count no more.

**Which key.** A write replaces its key, so it repeats the offsets in this key that are nowhere newer. The
first key with little to repeat is written; if all are full, the one with the least. Thus a small group has
one key, and a commit in the largest group repeats at most a 64th of the partitions.

**Fencing.** A write names the record as its guard: JetStream stores it only if the record still has the
revision that this controller wrote. A controller that takes over writes the record before it reads the keys.
From then on no write of its predecessor can be stored, so it reads everything that was ever answered. It does
so too when it loads a group again after a write without an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from liftenvelope.errors import GroupError, WrongLastSequenceError
from liftenvelope.group._controller.store import GroupStore
from liftenvelope.group.assignors import TopicPartition
from liftenvelope.group.wire import decode_offsets, encode_offsets

__all__ = ["KIND", "OffsetKeys", "OffsetSlots"]

#: First token of the offset keys.
KIND: Final = "offsets"
#: Most offset keys of a group, and the number of offsets that a key may repeat while there are more keys.
_KEYS: Final = 64
_FEW: Final = 64
#: Bytes that an offset adds to the record at most.
_OFFSET_SIZE: Final = 24


class OffsetSlots:
    """Offsets in each key of a group, by the number of the key. Sans-io.

    Example:
        >>> slots = OffsetSlots()
        >>> slots.next({TopicPartition("orders", 0): 7})
        (0, {TopicPartition(topic='orders', partition=0): 7})
    """

    def __init__(self) -> None:
        self._slots: list[dict[TopicPartition, int]] = []
        self._places: dict[TopicPartition, int] = {}
        self.clear()

    def __len__(self) -> int:
        """Return the number of partitions whose offsets are newer than the record's."""
        return len(self._places)

    def next(self, commits: Mapping[TopicPartition, int]) -> tuple[int, dict[TopicPartition, int]]:
        """Return the number of the key to write, and its content."""
        sizes = [len(slot) for slot in self._slots]
        number = next((number for number, size in enumerate(sizes) if size <= _FEW), -1)
        if number < 0:
            number = sizes.index(min(sizes))
        return number, {**self._slots[number], **commits}

    def stored(self, number: int, content: Mapping[TopicPartition, int]) -> None:
        """Record that a key was written. It is newer than all others."""
        for partition in content:
            place = self._places.get(partition, number)
            if place != number:
                del self._slots[place][partition]
            self._places[partition] = number
        for partition in self._slots[number].keys() - content.keys():
            del self._places[partition]
        self._slots[number] = dict(content)

    def clear(self) -> None:
        """Record that the group's record includes all offsets."""
        self._slots = [{} for _ in range(_KEYS)]
        self._places.clear()

    def offsets(self) -> dict[TopicPartition, int]:
        """Return all offsets that are newer than the record's."""
        return {partition: offset for slot in self._slots for partition, offset in slot.items()}


class OffsetKeys:
    """Reads and writes the offset keys of a group that this coordinator controls.

    Args:
        store: The bucket.
        token: Token of the group's name.
        guard: Key of the group's record.
    """

    def __init__(self, store: GroupStore, token: str, guard: str) -> None:
        self._store = store
        self._prefix = f"{KIND}.{token}"
        self._guard = guard
        self._slots = OffsetSlots()
        self._revisions: dict[str, int] = {}
        self._room = 0

    async def read(self, after: int, guard_revision: int) -> dict[TopicPartition, int]:
        """Return the offsets that are newer than those in the record.

        Args:
            after: Revision up to which the record includes all offsets.
            guard_revision: Revision of the record, which this coordinator has just written.

        Raises:
            GroupUnavailableError: The keys could not be read.
            CoordinatorDefectError: A key is damaged.
        """
        for entry in await self._store.under(self._prefix, guard_revision):
            if entry.value is None:
                continue
            self._revisions[entry.key] = entry.revision
            number = entry.key.removeprefix(f"{self._prefix}.")
            if entry.revision > after and number.isdecimal() and int(number) < _KEYS:
                self._slots.stored(int(number), decode_offsets(entry.value))
        return self._slots.offsets()

    def has_room(self, commits: Mapping[TopicPartition, int]) -> bool:
        """Return True if offsets may be stored apart from the record.

        They may not if the server can't check the guard, or if the record might not fit in a NATS message
        with them: then the commit must fail, not a later change of the members.
        """
        return self._store.has_guards and _OFFSET_SIZE * (len(self._slots) + len(commits)) <= self._room

    async def write(self, commits: Mapping[TopicPartition, int], guard_revision: int) -> int:
        """Store committed offsets; return the revision.

        Raises:
            WrongLastSequenceError: The record has another revision.
            GroupUnavailableError: The outcome of the write is unknown.
        """
        number, content = self._slots.next(commits)
        key = f"{self._prefix}.{number}"
        revision = await self._store.put(key, encode_offsets(content), guard_revision, guard=self._guard)
        self._slots.stored(number, content)
        self._revisions[key] = revision
        return revision

    def included(self, record: bytes, topics: Iterable[str]) -> None:
        """Record that the group's record includes all offsets from now on."""
        self._slots.clear()
        self.measure(record, topics)

    def measure(self, record: bytes, topics: Iterable[str]) -> None:
        """Compute how many bytes of offsets could be added to the record."""
        names = sum(len(name.encode()) + _OFFSET_SIZE for name in topics)
        self._room = self._store.largest_value - len(record) - names

    async def delete(self) -> None:
        """Delete the keys of a group that was deleted.

        A key that can't be deleted has no effect on a later group of this name, which takes it over.
        """
        for key, revision in self._revisions.items():
            try:
                await self._store.delete(key, revision)
            except WrongLastSequenceError:
                continue  # a later group of this name has written it
            except GroupError:
                return
