"""Registry of the streams: records in a bucket, mirrored by every gateway, changed by compare-and-set.

Each entry has a revision, and an entry older than the known revision is ignored. An own write is applied at
once, so the mirrored entry that follows changes nothing. The revisions of the latest 10,000 removed records
are kept as well: an answer with the record that was there before may still be on its way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from liftenvelope._checks import RESERVED
from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import (
    InternalError,
    LiftEnvelopeError,
    NoJetStreamError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from liftenvelope.gateway._cluster.mirror import Mirror
from liftenvelope.gateway._cluster.records import StreamPhase, StreamRecord, read_ids
from liftenvelope.gateway._cluster.stored_json import read_stored
from liftenvelope.gateway._protocol.names import encode_name
from liftenvelope.jetstream.bucket import Bucket, BucketEntry
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from liftenvelope.jetstream.context import JetStream

__all__ = ["StreamRegistry"]

BUCKET: Final = "lift_streams"
#: Removed records whose revisions are known. Clients may create and delete streams of any number of names.
_MOST_REMOVED: Final = 10_000
#: Ids of streams of one name whose creation was undone that are remembered.
_MOST_UNDONE: Final = 8
#: Seconds until the marker of a removed record expires. A gateway that is cut off from NATS for longer looks
#: for removed records when it is back.
_MARKER_TTL: Final = 7 * 24 * 3600.0
#: Attempts of a change that loses the compare-and-set race to other gateways.
_TRIES: Final = 20
#: Reads of single records that are remembered. Clients may name any number of streams that do not exist.
_MOST_READS: Final = 1_000

#: Called with the record before and after a change; None stands for no stream.
RecordListener = Callable[[StreamRecord | None, StreamRecord | None], None]


class _Read(NamedTuple):
    """Read of one record: the time of the event loop when it began, and its task."""

    began: float
    task: asyncio.Task[StreamRecord | None]


class StreamRegistry:
    """The records of all streams, kept up to date. Iterating yields the streams that are ready.

    Args:
        js: JetStream.
        on_change: Called when any gateway created, changed or removed a ready stream.
        replicas: Number of servers that store the bucket. Default 1.

    Attributes:
        streams: Number of streams that are ready, without the reserved ones.
        partitions: Number of their partitions.
        changes: Number of entries applied so far. While it stays the same, so do all records.
    """

    def __init__(self, js: JetStream, on_change: RecordListener, *, replicas: int = 1) -> None:
        self._bucket = Bucket(js, BUCKET, replicas=replicas, marker_ttl=_MARKER_TTL)
        self._mirror = Mirror(self._bucket, self._on_entry, on_gap=self._find_removed)
        self._following = AsyncExitStack()
        self._on_change = on_change
        self.streams = self.partitions = self.changes = 0
        # By key: the record (None if deleted) and its revision.
        self._records: dict[str, tuple[StreamRecord | None, int]] = {}
        # Keys of removed records, the longest removed first.
        self._removed: dict[str, None] = {}
        # By key of a removed record: ids of the streams whose creation was undone.
        self._undone: dict[str, tuple[str, ...]] = {}
        # Completed by the next entry.
        self._waiting: list[asyncio.Future[None]] = []
        # Last read of each record, by key, the longest ago first.
        self._reads: dict[str, _Read] = {}

    async def start(self) -> None:
        """Create the bucket if it is missing, read all records and follow their changes."""
        await self._bucket.create()
        await self._following.enter_async_context(self._mirror.running())

    async def close(self) -> None:
        """Stop following changes."""
        await self._following.aclose()
        await cancel([read.task for read in self._reads.values()])

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self._bucket.name

    @property
    def has_undone(self) -> bool:
        """True if the creation of any stream was undone, as far as the records tell."""
        return bool(self._undone) or any(record.never_ready for record in self)

    def undone(self, key: str) -> tuple[str, ...]:
        """Return the ids of the latest streams with that bucket key whose creation was undone."""
        record, _ = self._records.get(key, (None, 0))
        return self._undone.get(key, ()) if record is None else record.never_ready

    @property
    def is_readable(self) -> bool:
        """True while this gateway has read the whole bucket and follows its changes."""
        return self._mirror.is_following

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter([r for r, _ in self._records.values() if r is not None and r.state is StreamPhase.READY])

    def unfinished(self) -> list[StreamRecord]:
        """Return the records of streams that are being created or removed."""
        found = [record for record, _ in self._records.values()]
        return [record for record in found if record is not None and record.state is not StreamPhase.READY]

    def known(self, name: str) -> StreamRecord | None:
        """Return the ready stream of that name from the local mirror; None if the mirror has none."""
        return self.keyed(encode_name(name))

    def keyed(self, key: str) -> StreamRecord | None:
        """Return the ready stream with that bucket key (its encoded name) from the local mirror, or None."""
        record, _ = self._records.get(key, (None, 0))
        return record if record is not None and record.state is StreamPhase.READY else None

    def revision(self, name: str) -> int:
        """Return the revision of a stream's record that this gateway knows; 0 for none."""
        return self._records.get(encode_name(name), (None, 0))[1]

    async def seen(self, name: str, revision: int) -> None:
        """Wait until this gateway knows at least this revision of a stream's record."""
        while self.revision(name) < revision:
            entry = asyncio.get_running_loop().create_future()
            self._waiting.append(entry)
            await entry

    async def find(self, name: str, since: float | None = None) -> StreamRecord:
        """Return the stream of that name. If the mirror does not have it, read the bucket.

        Args:
            name: Name of the stream.
            since: Time of the event loop. A read that began later counts. Default: now.

        Raises:
            RpcError: NOT_FOUND: the stream does not exist or is not ready. UNAVAILABLE: the bucket was
                deleted.
        """
        record = self.known(name)
        if record is None:
            record = await self.refresh(name, since)
        if record is None or record.state is not StreamPhase.READY:
            raise RpcError(StatusCode.NOT_FOUND, "No such stream")
        return record

    async def create(self, record: StreamRecord) -> None:
        """Store the record of a new stream.

        Raises:
            RpcError: ALREADY_EXISTS: a stream of that name exists. ABORTED: other gateways changed the record
                during all 20 attempts. UNAVAILABLE: the bucket was deleted.
        """
        key = encode_name(record.name)
        for _ in range(_TRIES):
            there, revision = self._records.get(key, (None, 0))
            if there is not None:
                # The stream may just have been removed.
                there = await self.refresh(record.name)
                revision = self._records.get(key, (None, 0))[1]
            if there is not None:
                raise RpcError(StatusCode.ALREADY_EXISTS, "stream already exists")
            try:
                await self._put(key, replace(record, never_ready=self.undone(key)), revision)
            except WrongLastSequenceError:
                await self.refresh(record.name)
            else:
                return
        raise RpcError(StatusCode.ABORTED, "other gateways keep changing the stream: retry later")

    async def change(self, name: str, change: Callable[[StreamRecord], StreamRecord]) -> StreamRecord:
        """Change a stream's record atomically, with retries if other gateways change it at the same time.

        Args:
            name: Name of the stream.
            change: Returns the new record for the current one. It may be called several times.

        Returns:
            The record that is stored now.

        Raises:
            RpcError: NOT_FOUND: the stream does not exist. ABORTED: other gateways changed the record during
                all 20 attempts. UNAVAILABLE: the bucket was deleted.
        """
        key = encode_name(name)
        for _ in range(_TRIES):
            record, revision = self._records.get(key, (None, 0))
            if record is None:
                record = await self.refresh(name)
                revision = self._records.get(key, (None, 0))[1]
            if record is None:
                raise RpcError(StatusCode.NOT_FOUND, "No such stream")
            changed = change(record)
            if changed == record:
                return record
            try:
                await self._put(key, changed, revision)
            except WrongLastSequenceError:
                await self.refresh(name)
            else:
                return changed
        raise RpcError(StatusCode.ABORTED, "other gateways keep changing the stream: retry later")

    async def clear_event(self, name: str, token: str) -> None:
        """Remove a published event from a stream's record, if the stream still exists."""
        try:
            await self.change(name, lambda record: record.without_event(token))
        except RpcError as exc:
            if exc.code != StatusCode.NOT_FOUND:
                raise

    async def remove(self, record: StreamRecord) -> None:
        """Remove the record of a stream, if it has one. That of a later stream of the same name stays.

        Raises:
            RpcError: ABORTED: other gateways changed the record during all 20 attempts. UNAVAILABLE: the
                bucket was deleted.
        """
        key = encode_name(record.name)
        for _ in range(_TRIES):
            there, revision = self._records.get(key, (None, 0))
            if there is None:
                there = await self.refresh(record.name)
                revision = self._records.get(key, (None, 0))[1]
            if there is None or there.id != record.id:
                return
            try:
                undone = _undone_of(there)
                left = json.dumps(undone).encode() if undone else b""
                async with self._writing():
                    removed = await self._bucket.delete(key, revision=revision, left=left)
            except WrongLastSequenceError:
                await self.refresh(record.name)
            else:
                self._on_entry(BucketEntry(key, None, removed, left))
                return
        raise RpcError(StatusCode.ABORTED, "other gateways keep changing the stream: retry later")

    async def _put(self, key: str, record: StreamRecord, revision: int) -> None:
        data = record.to_json()
        async with self._writing():
            written = await self._bucket.put(key, data, revision=revision)
        self._on_entry(BucketEntry(key, data, written))

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Name the bucket if a write fails because the bucket was deleted: nothing answers such a write."""
        try:
            yield
        except NoJetStreamError as exc:
            try:
                await self._bucket.js.stream(self._bucket.stream)
            except StreamNotFoundError:
                raise _bucket_is_gone() from exc
            except LiftEnvelopeError:
                pass  # the error of the write counts
            raise

    async def refresh(self, name: str, since: float | None = None) -> StreamRecord | None:
        """Read a stream's record from the bucket into the mirror and return it, in any state; None for none.

        The leader of the bucket answers. A replica that lags would answer with the record that has just
        caused a conflict. One read of a record runs at a time, and counts for every call that asked before it
        began: clients decide how often a record is asked for.

        Args:
            name: Name of the stream.
            since: Time of the event loop at which the caller asked. Default: now.

        Raises:
            RpcError: UNAVAILABLE: the bucket was deleted, so nobody knows whether the stream exists.
        """
        key = encode_name(name)
        if not key:
            return None  # a bucket has no empty key
        asked = asyncio.get_running_loop().time() if since is None else since
        while True:
            read = self._reads.get(key)
            if read is None or (read.began < asked and read.task.done()):
                read = self._begin_read(key)
            if not read.task.done():
                await asyncio.wait([read.task])  # a caller that is cancelled leaves it to the others
            if read.began >= asked:
                read.task.result()
                return self._records.get(key, (None, 0))[0]

    def _begin_read(self, key: str) -> _Read:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._refresh(key), name=f"record {key}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # its callers may be gone
        self._reads.pop(key, None)
        read = self._reads[key] = _Read(loop.time(), task)
        if len(self._reads) > _MOST_READS:
            del self._reads[next(iter(self._reads))]
        return read

    async def _find_removed(self) -> None:
        """Look for records that were removed while this gateway did not follow the bucket."""
        keys, last = await self._bucket.keys(">")
        there = set(keys)
        known = [(key, revision) for key, (record, revision) in self._records.items() if record is not None]
        for key, revision in known:
            if key not in there and revision <= last:  # otherwise it is newer than the list
                await self._refresh(key)

    async def _refresh(self, key: str) -> StreamRecord | None:
        known = self._records.get(key)
        try:
            entry = await self._bucket.get(key)
        except StreamNotFoundError as exc:
            raise _bucket_is_gone() from exc
        if not entry.revision and known is not None and self._records.get(key) is known:
            # The marker of a removal has expired, of which a gateway that was cut off may not have heard. A
            # new record must expect that the key was never set.
            del self._records[key]
            self._removed.pop(key, None)
            self._undone.pop(key, None)
            if known[0] is not None:
                self._report(known[0], None)
        self._on_entry(entry)
        return self._records.get(key, (None, 0))[0]

    def _on_entry(self, entry: BucketEntry) -> None:
        """Apply an entry, own or mirrored, unless it is known."""
        before, revision = self._records.get(entry.key, (None, 0))
        if entry.revision <= revision:
            return  # already known, such as an own write that the mirror reports
        record = None if entry.value is None else StreamRecord.from_json(entry.value)
        self._records[entry.key] = (record, entry.revision)
        self._removed.pop(entry.key, None)
        self._undone.pop(entry.key, None)
        if undone := _undone_in(entry.left):
            self._undone[entry.key] = undone
        if record is None:
            self._forget(entry.key)
        self._report(before, record)

    def _report(self, before: StreamRecord | None, record: StreamRecord | None) -> None:
        """Count a change of a record, wake its waiters, and report it if the stream is or was ready."""
        self.changes += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        seen = [r if r is not None and r.state is StreamPhase.READY else None for r in (before, record)]
        for sign, known in zip((-1, 1), seen, strict=True):
            if known is not None and known.name not in RESERVED:
                self.streams += sign
                self.partitions += sign * len(known.partitions)
        if seen != [None, None] and seen[0] != seen[1]:
            self._on_change(*seen)

    def _forget(self, key: str) -> None:
        """Keep the revision of a removed record for now, and forget the one that was removed first."""
        self._removed[key] = None
        if len(self._removed) > _MOST_REMOVED:
            oldest = next(iter(self._removed))
            del self._removed[oldest], self._records[oldest]
            self._undone.pop(oldest, None)


def _undone_in(marker: bytes) -> tuple[str, ...]:
    """Return the ids in the marker of a removed record."""
    try:
        return read_stored(read_ids, marker, "the marker of a removed record") if marker else ()
    except InternalError:
        return ()  # not written by a gateway


def _undone_of(record: StreamRecord) -> tuple[str, ...]:
    """Return the ids to remember when a record is removed."""
    is_undone = record.state is StreamPhase.CREATING and record.name not in RESERVED
    return (*record.never_ready, *([record.id] if is_undone else []))[-_MOST_UNDONE:]


def _bucket_is_gone() -> RpcError:
    text = f"the bucket {BUCKET} with the records of all streams does not exist any more"
    remedy = "restore it from a backup, or restart a gateway to create an empty one"
    return RpcError(StatusCode.UNAVAILABLE, f"{text}: {remedy}")
