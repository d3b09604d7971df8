"""Key-value buckets of JetStream (ADR-8), reduced to what the gateway needs: compare-and-set, and a mirror.

A bucket is a stream that keeps the last message of each subject ``$KV.<bucket>.<key>``. The sequence of that
message is the revision of the key. A change that names an expected revision is stored only if that revision
is still the last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import (
    InternalError,
    LiftEnvelopeError,
    MessageNotFoundError,
    StreamNameInUseError,
    StreamNotFoundError,
)
from liftenvelope.jetstream.stream_config import DiscardPolicy, StreamConfig

if TYPE_CHECKING:
    from liftenvelope.jetstream.consuming import Messages
    from liftenvelope.jetstream.context import JetStream
    from liftenvelope.jetstream.message import Message

__all__ = ["Bucket", "Entry", "Mirror"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_OPERATION: Final = "KV-Operation"
_GONE: Final = ("DEL", "PURGE")
#: Seconds to wait for each of the values that a bucket holds at the start.
_LATEST: Final = 2.0
#: Seconds to wait before a bucket is read again from the beginning.
_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value at one revision.

    Attributes:
        key: The key.
        value: The value; None if it was deleted.
        revision: Revision of the key.
    """

    key: str
    value: bytes | None
    revision: int


class Bucket:
    """A key-value bucket.

    Args:
        js: JetStream.
        name: Name of the bucket.
    """

    def __init__(self, js: JetStream, name: str) -> None:
        self.js = js
        self.name = name
        self.stream = f"KV_{name}"

    async def create(self, *, replicas: int = 1, ttl: float = 0.0) -> None:
        """Create the bucket if it does not exist. An existing bucket keeps its settings.

        Args:
            replicas: Number of replicas. Default 1.
            ttl: Seconds after which a value expires. Default 0: never.
        """
        config = StreamConfig(
            name=self.stream,
            subjects=(f"$KV.{self.name}.>",),
            max_msgs_per_subject=1,
            discard=DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
            max_age=ttl,
            num_replicas=replicas,
        )
        try:
            await self.js.stream(self.stream)
        except StreamNotFoundError:
            try:
                await self.js.create_stream(config)
            except StreamNameInUseError:
                return  # another gateway created it first, with other settings

    async def get(self, key: str) -> Entry | None:
        """Return the last entry of a key, also if it is a deletion; None if there is no entry."""
        stream = await self.js.stream(self.stream)
        try:
            stored = await stream.get_message(last_by_subject=f"$KV.{self.name}.{key}")
        except MessageNotFoundError:
            return None
        gone = stored.headers.get(_OPERATION) in _GONE
        return Entry(key, None if gone else stored.data, stored.sequence)

    async def put(
        self, key: str, value: bytes, *, revision: int | None = None, after: int | None = None
    ) -> int:
        """Set a value; return its revision.

        Args:
            key: The key.
            value: The value.
            revision: Expected last revision of the key; 0 for a key that was never set. Default: any.
            after: Expected last revision of the whole bucket. Default: any.

        Raises:
            WrongLastSequenceError: The last revision is another one.
        """
        subject = self.js.api.key_subject(f"$KV.{self.name}.{key}")
        ack = await self.js.publish(
            subject, value, expected_last_subject_sequence=revision, expected_last_sequence=after
        )
        return ack.sequence

    async def delete(self, key: str, *, revision: int | None = None) -> int:
        """Delete a value; return the revision of the deletion.

        Args:
            key: The key.
            revision: Expected last revision of the key. Default: any.

        Raises:
            WrongLastSequenceError: The last revision is another one.
        """
        ack = await self.js.publish(
            self.js.api.key_subject(f"$KV.{self.name}.{key}"),
            headers={_OPERATION: "DEL"},
            expected_last_subject_sequence=revision,
        )
        return ack.sequence


class Mirror:
    """Reads all entries of a bucket and follows its changes.

    Args:
        bucket: The bucket.
        on_entry: Called with each entry in the order of revisions, including entries that this process wrote.
        heartbeat: Heartbeat interval of the consumer, in seconds. Default 2.
    """

    def __init__(self, bucket: Bucket, on_entry: Callable[[Entry], None], *, heartbeat: float = 2.0) -> None:
        self._bucket = bucket
        self._on_entry = on_entry
        self._heartbeat = heartbeat
        self._prefix = len(f"$KV.{bucket.name}.")
        self._messages: Messages | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read all entries of the bucket, then follow its changes in the background."""
        await self._open()
        self._task = asyncio.create_task(self._follow(), name=f"follow {self._bucket.name}")

    async def close(self) -> None:
        """Stop following the bucket."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._messages is not None:
            self._messages.stop()

    async def _open(self) -> None:
        stream = await self._bucket.js.stream(self._bucket.stream)
        waiting = (await stream.info()).state.messages
        # The stream keeps only the last value of each key.
        self._messages = stream.ordered_consumer().messages(expires=10.0, idle_heartbeat=self._heartbeat)
        await self._messages.__aenter__()
        while waiting:
            try:
                message = await self._messages.next(timeout=_LATEST)
            except TimeoutError:
                break  # the remaining values have expired in the meantime
            self._take(message)
            waiting = message.metadata.num_pending

    async def _follow(self) -> None:
        while True:
            try:
                assert self._messages is not None
                async for message in self._messages:
                    self._take(message)
            except LiftEnvelopeError as exc:
                _log.warning("changes of the bucket %s don't come: %s", self._bucket.name, exc)
            await asyncio.sleep(_PAUSE)
            try:
                await self._open()
            except LiftEnvelopeError as exc:
                _log.warning("the bucket %s can't be read: %s", self._bucket.name, exc)

    def _take(self, message: Message) -> None:
        gone = message.headers.get(_OPERATION) in _GONE
        value = None if gone else message.data
        revision = message.metadata.stream_sequence
        try:
            self._on_entry(Entry(message.subject[self._prefix :], value, revision))
        except InternalError as exc:
            # Not written by a gateway. The other entries are sound.
            _log.warning("in the bucket %s: %s", self._bucket.name, exc)
