"""KV bucket of JetStream in which every key is changed only by compare-and-set.

The layout is that of every NATS client (ADR-8), so ``nats kv`` shows the bucket. Reads and writes use
JetStream directly: reads go to the stream's leader, and errors can be told apart.

A write expects the revision that its writer has seen last. A write without an answer may have been stored, so
callers read the key again before they decide anything: see :class:`Conflict`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import (
    AckTimeoutError,
    CallTimeoutError,
    JetStreamError,
    MessageNotFoundError,
    StreamNameInUseError,
    TransportError,
    UsageError,
    WrongLastSequenceError,
)
from liftenvelope.group.errors import GroupLimitError, GroupUnavailableError
from liftenvelope.jetstream import DiscardPolicy, JetStream, Stream, StreamConfig

if TYPE_CHECKING:
    from liftenvelope.jetstream import StoredMessage

__all__ = ["Conflict", "Entry", "Store"]

_OPERATION: Final = "KV-Operation"
#: Seconds that the marker of a deleted key stays, long enough for every watcher to see it.
_MARK_TTL: Final = 3600.0
#: Keys read at once. The server answers for at most 1,024 subjects.
_AT_ONCE: Final = 500
_FIRST_PAUSE: Final = 0.05


class Conflict(Exception):  # noqa: N818 - an expected outcome, not a failure
    """Another writer has changed the key. It may have been an earlier write of the same process."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Value and revision of a key.

    Attributes:
        value: Value of the key; None if it was deleted or never set.
        revision: Revision that the next write must expect.
    """

    value: bytes | None
    revision: int


class Store:
    """A bucket.

    Args:
        js: JetStream.
        bucket: Name of the bucket.
        replicas: Replicas of the bucket, if it is created here.
    """

    def __init__(self, js: JetStream, bucket: str, replicas: int) -> None:
        self._js = js
        self._stream: Stream | None = None
        self._prefix = f"$KV.{bucket}."
        self._config = StreamConfig(
            name=f"KV_{bucket}",
            subjects=(f"$KV.{bucket}.>",),
            max_msgs_per_subject=1,
            discard=DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
            allow_msg_ttl=True,
            num_replicas=replicas,
        )

    async def open(self, patience: float) -> None:
        """Create or find the bucket, retrying while JetStream is unavailable.

        Raises:
            GroupUnavailableError: JetStream did not answer in ``patience`` seconds.
            JetStreamError: JetStream refused.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            try:
                with _unavailable("can't create the bucket"):
                    self._stream = await self._make()
                return
            except GroupUnavailableError:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(_FIRST_PAUSE)

    async def _make(self) -> Stream:
        try:
            return await self._js.create_stream(self._config)
        except StreamNameInUseError:
            # The bucket exists with other replicas or in memory, which is its creator's decision.
            return await self._js.stream(self._config.name)

    def _opened(self) -> Stream:
        assert self._stream is not None
        return self._stream

    async def get(self, key: str) -> Entry:
        """Return value and revision of a key, as the stream's leader knows them.

        Raises:
            GroupUnavailableError: The key could not be read.
        """
        with _unavailable(f"can't read key {key!r}"):
            try:
                subject = self._prefix + key
                message = await self._opened().get_message(last_by_subject=subject, direct=False)
            except MessageNotFoundError:
                return Entry(None, 0)
            return _entry(message)

    async def put(self, key: str, value: bytes, revision: int) -> int:
        """Write a key that has the given revision; return the new revision.

        Raises:
            Conflict: The key has another revision.
            GroupUnavailableError: The outcome of the write is unknown.
            GroupLimitError: The value is too large.
        """
        with _unavailable(f"can't write key {key!r}"):
            try:
                ack = await self._js.publish(
                    self._js.api.key_subject(self._prefix + key),
                    value,
                    expected_last_subject_sequence=revision,
                )
            except WrongLastSequenceError as exc:
                raise Conflict(key) from exc
            except UsageError as exc:
                raise GroupLimitError(f"the value of key {key!r} is too large: {exc}") from exc
            return ack.sequence

    async def delete(self, key: str, revision: int) -> None:
        """Delete a key that has the given revision.

        Raises:
            Conflict: The key has another revision.
            GroupUnavailableError: The outcome of the deletion is unknown.
        """
        with _unavailable(f"can't delete key {key!r}"):
            try:
                await self._js.publish(
                    self._js.api.key_subject(self._prefix + key),
                    headers={_OPERATION: "DEL"},
                    expected_last_subject_sequence=revision,
                    ttl=_MARK_TTL if self._opened().cached_info.config.allow_msg_ttl else None,
                )
            except WrongLastSequenceError as exc:
                raise Conflict(key) from exc

    async def all(self, kind: str) -> dict[str, Entry]:
        """Return all keys that begin with ``kind`` and a dot, without deleted ones, by the rest of the key.

        The result may be slightly stale: any replica of the bucket may answer.

        Raises:
            GroupUnavailableError: The keys could not be read.
        """
        head = f"{self._prefix}{kind}."
        found: dict[str, Entry] = {}
        with _unavailable(f"can't read the keys of {kind!r}"):
            subjects = sorted((await self._opened().info(subjects_filter=f"{head}>")).state.subjects)
            for begin in range(0, len(subjects), _AT_ONCE):
                answers = self._opened().get_last_messages(subjects[begin : begin + _AT_ONCE])
                try:
                    async for message in answers:
                        found[message.subject.removeprefix(head)] = _entry(message)
                except MessageNotFoundError:
                    continue  # deleted meanwhile
        return {key: entry for key, entry in found.items() if entry.value is not None}

    async def last_sequence(self) -> int:
        """Return the highest revision that the bucket ever assigned.

        Raises:
            GroupUnavailableError: The bucket could not be read.
        """
        with _unavailable("can't read the state of the bucket"):
            return (await self._opened().info()).state.last_seq


def _entry(message: StoredMessage) -> Entry:
    return Entry(None if _OPERATION in message.headers else message.data, message.sequence)


@contextlib.contextmanager
def _unavailable(what: str) -> Iterator[None]:
    try:
        yield
    except (AckTimeoutError, CallTimeoutError, JetStreamError, TransportError) as exc:
        raise GroupUnavailableError(f"{what}: {exc}") from exc
