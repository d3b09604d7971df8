"""Bucket of the groups: every write expects a revision, and failures are group errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from liftenvelope._deadlines import Deadline
from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    JetStreamError,
    PermissionDeniedError,
    StreamMessageTooLargeError,
    TransportError,
    UsageError,
    WrongLastSequenceError,
)
from liftenvelope.group.errors import GroupLimitError, GroupUnavailableError
from liftenvelope.jetstream import JetStream
from liftenvelope.jetstream.bucket import Bucket, BucketEntry
from liftenvelope.nats.link import max_payload_of

__all__ = ["GroupStore"]

#: Seconds until the marker of a deleted key expires, long enough for every coordinator to see it.
_MARKER_TTL: Final = 3600.0
#: Metadata of streams that servers from version 2.11 on add.
_API_LEVEL: Final = "_nats.level"
#: Error of an account that accepts no stream without max_bytes.
_NEEDS_MAX_BYTES: Final = 10113
#: Room in bytes for the headers and the longest key of a write.
_HEADERS: Final = 4_096
#: Seconds between attempts to open the bucket, and between looks at a leader that is behind.
_PAUSE: Final = 0.05


class GroupStore:
    """Bucket that holds the records of groups and coordinators.

    A write whose outcome is unknown raises GroupUnavailableError. It may have been stored, so callers read
    the key before they write it again.

    Args:
        js: JetStream.
        bucket: Name of the bucket.
        replicas: Replicas of the bucket, if it is created here.
    """

    def __init__(self, js: JetStream, bucket: str, replicas: int) -> None:
        self._js = js
        self._bucket = Bucket(js, bucket, replicas=replicas, marker_ttl=_MARKER_TTL)
        #: True if the server checks the guard of a write: from version 2.11 on.
        self.has_guards = False

    @property
    def largest_value(self) -> int:
        """Size in bytes of a value that certainly fits in one NATS message."""
        return max_payload_of(self._js.api.nc) - _HEADERS

    async def open(self, patience: float) -> None:
        """Create or find the bucket, retrying while JetStream is unavailable.

        Args:
            patience: Seconds after which a failed attempt is the last one.

        Raises:
            GroupUnavailableError: JetStream refused or did not answer.
        """
        deadline = Deadline(patience)
        while True:
            try:
                with _unavailable(f"can't create the bucket {self._bucket.name!r}"):
                    await self._create()
                    await self._learn()
                return
            except GroupUnavailableError:
                if deadline.is_over:
                    raise
                await asyncio.sleep(_PAUSE)

    async def _create(self) -> None:
        try:
            await self._bucket.create()
        except JetStreamError as exc:
            if exc.err_code != _NEEDS_MAX_BYTES:
                raise
            text = f"{exc.description}: create the bucket with max_bytes before the first coordinator starts"
            raise JetStreamError(exc.code, text, exc.err_code) from exc

    async def get(self, key: str) -> BucketEntry:
        """Return the last entry of a key, as the bucket's leader knows it.

        Raises:
            GroupUnavailableError: The key could not be read.
        """
        with _unavailable(f"can't read key {key!r}"):
            return await self._bucket.get(key)

    async def put(self, key: str, value: bytes, revision: int, *, guard: str | None = None) -> int:
        """Write a key that has the given revision; return the new revision.

        Args:
            key: The key.
            value: The value.
            revision: Expected revision.
            guard: Key that must have the revision, instead of ``key`` itself. Needs :attr:`has_guards`.

        Raises:
            WrongLastSequenceError: The key or its guard has another revision.
            GroupUnavailableError: The outcome of the write is unknown.
            GroupLimitError: The value is too large.
        """
        with _unavailable(f"can't write key {key!r}"):
            try:
                return await self._bucket.put(key, value, revision=revision, guard=guard)
            except (UsageError, StreamMessageTooLargeError) as exc:
                raise GroupLimitError(f"the value of key {key!r} is too large: {exc}") from exc

    async def delete(self, key: str, revision: int) -> None:
        """Delete a key that has the given revision.

        Raises:
            WrongLastSequenceError: The key has another revision.
            GroupUnavailableError: The outcome of the deletion is unknown.
        """
        with _unavailable(f"can't delete key {key!r}"):
            await self._bucket.delete(key, revision=revision)

    async def all(self, kind: str) -> dict[str, BucketEntry]:
        """Return the entries of all keys that begin with ``kind`` and a dot, by the rest of the key.

        Deleted keys are left out. The result may be slightly stale: any replica of the bucket may answer.

        Raises:
            GroupUnavailableError: The keys could not be read.
        """
        with _unavailable(f"can't read the keys of {kind!r}"):
            entries = await self._bucket.entries(f"{kind}.>")
        return {entry.key.removeprefix(f"{kind}."): entry for entry in entries}

    async def under(self, prefix: str, revision: int) -> list[BucketEntry]:
        """Return the entries of all keys that begin with ``prefix`` and a dot, by revision.

        Deletions are included. Nothing that was written before ``revision`` is missing: the leader answers,
        and a new leader is not asked before it has stored that revision.

        Raises:
            GroupUnavailableError: The keys could not be read.
        """
        deadline = Deadline(self._js.api.timeout)
        with _unavailable(f"can't read the keys of {prefix!r}"):
            while True:
                keys, last = await self._bucket.keys(f"{prefix}.*")
                await self._learn()
                if last >= revision:
                    break
                if deadline.is_over:
                    raise GroupUnavailableError(f"the bucket's leader lacks revision {revision}; retry")
                await asyncio.sleep(_PAUSE)
            entries = await asyncio.gather(*(self._bucket.get(key) for key in keys))
        return sorted(entries, key=lambda entry: entry.revision)

    async def _learn(self) -> None:
        """Note from the leader's last answer if it checks guards: the servers of a cluster may differ."""
        self.has_guards = _API_LEVEL in (await self._bucket.handle()).cached_info.config.metadata

    async def last_revision(self) -> int:
        """Return the highest revision that the bucket ever assigned.

        Raises:
            GroupUnavailableError: The bucket could not be read.
        """
        with _unavailable("can't read the state of the bucket"):
            return await self._bucket.last_revision()


@contextlib.contextmanager
def _unavailable(what: str) -> Iterator[None]:
    try:
        yield
    except WrongLastSequenceError:
        raise  # an expected outcome, which the caller handles
    except (
        AckTimeoutError,
        CallTimeoutError,
        JetStreamError,
        PermissionDeniedError,
        TransportError,
    ) as exc:
        raise GroupUnavailableError(f"{what}: {exc}") from exc
