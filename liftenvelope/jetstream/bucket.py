"""Key-value bucket of JetStream (ADR-8) with compare-and-set writes.

A bucket is a stream that keeps the last message of each subject ``$KV.<bucket>.<key>``. The sequence of that
message is the revision of the key. A write that names an expected revision is stored only if the key still
has that revision; otherwise it fails with WrongLastSequenceError. The layout is that of every NATS client, so
``nats kv`` shows the bucket.

A write whose answer is lost may have been stored. Its retry then conflicts with the writer's own first
attempt, so a writer that gets WrongLastSequenceError must read the key before it decides anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import (
    MessageNotFoundError,
    StreamNameInUseError,
    StreamNotFoundError,
    UnsupportedByServerError,
)
from liftenvelope.jetstream.stream_config import DiscardPolicy, StreamConfig

if TYPE_CHECKING:
    from liftenvelope.jetstream._stored import StoredMessage
    from liftenvelope.jetstream._stream import Stream
    from liftenvelope.jetstream.context import JetStream
    from liftenvelope.jetstream.message import Message

__all__ = ["Bucket", "BucketEntry"]

#: Header of a deletion marker, and its values.
_OPERATION: Final = "KV-Operation"
_DELETED: Final = ("DEL", "PURGE")
#: Keys read by one request. The server accepts at most 1,024 subjects.
_BATCH: Final = 500
#: Size limit of one reply. The server's own limit is ``max_pending``, 64 MiB by default. The server closes a
#: connection with so many unread bytes as a slow consumer.
_BATCH_BYTES: Final = 4 * 1024 * 1024
#: Start of the server's description if no subject of a request has a message.
_NO_RESULTS: Final = "No Results"
#: Requests in a row that a write may end before their first message.
_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class BucketEntry:
    """Value of a key at one revision.

    Attributes:
        key: The key.
        value: The value; None if the key was deleted or never set.
        revision: Revision that the next write of the key must expect; 0 if the key was never set.
        left: Note that :meth:`Bucket.delete` has left, if the key was deleted. Default empty.
    """

    key: str
    value: bytes | None
    revision: int
    left: bytes = b""


class Bucket:
    """Key-value bucket. Sends no request before the first call.

    Args:
        js: JetStream, with the domain of the bucket.
        name: Name of the bucket.
        replicas: Number of replicas, if :meth:`create` creates the bucket. Default 1.
        ttl: Seconds after which a value expires, if :meth:`create` creates the bucket. Default 0: never.
        marker_ttl: Seconds after which the marker of a deleted key expires, in a bucket that allows a TTL per
            message. :meth:`create` then creates such a bucket. Default None: never.

    Attributes:
        js: JetStream.
        name: Name of the bucket.
        stream: Name of the bucket's stream.

    Raises:
        UsageError: The name is invalid.
    """

    def __init__(
        self,
        js: JetStream,
        name: str,
        *,
        replicas: int = 1,
        ttl: float = 0.0,
        marker_ttl: float | None = None,
    ) -> None:
        self.js = js
        self.name = name
        self.stream = f"KV_{name}"
        self._prefix = f"$KV.{name}."
        self._marker_ttl = marker_ttl
        self._handle: Stream | None = None
        self._config = StreamConfig(
            name=self.stream,
            subjects=(f"{self._prefix}>",),
            max_msgs_per_subject=1,
            discard=DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            allow_direct=True,
            allow_msg_ttl=marker_ttl is not None,
            max_age=ttl,
            num_replicas=replicas,
        )

    async def create(self) -> None:
        """Create the bucket if it does not exist. An existing bucket keeps its configuration.

        Raises:
            JetStreamError: The server refused.
        """
        try:
            self._handle = await self.js.stream(self.stream)
        except StreamNotFoundError:
            try:
                self._handle = await self.js.create_stream(self._config)
            except (StreamNameInUseError, UnsupportedByServerError):
                # Created meanwhile with another configuration, which is its creator's decision; or without
                # TTLs per message, which a bucket does not need.
                self._handle = await self.js.stream(self.stream)

    async def handle(self) -> Stream:
        """Return the handle of the bucket's stream. Only the first call sends a request.

        Raises:
            StreamNotFoundError: The bucket does not exist.
        """
        if self._handle is None:
            self._handle = await self.js.stream(self.stream)
        return self._handle

    async def get(self, key: str, *, direct: bool = False) -> BucketEntry:
        """Return the last entry of a key, which may be a deletion.

        Args:
            key: The key.
            direct: Let any replica answer, if the bucket allows it. The entry may then be older than the last
                one. Default false: the leader answers.
        """
        stream = await self.handle()
        try:
            message = await stream.get_message(
                last_by_subject=self._prefix + key, direct=None if direct else False
            )
        except MessageNotFoundError:
            return BucketEntry(key, None, 0)
        return self.entry_of(message, message.sequence)

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        revision: int | None = None,
        bucket_revision: int | None = None,
        guard: str | None = None,
    ) -> int:
        """Set a value; return its revision.

        Args:
            key: The key.
            value: The value.
            revision: Expected revision of the key; 0 for a key that was never set. Default: any.
            bucket_revision: Expected last revision of the whole bucket. Default: any.
            guard: Key that must have ``revision``, instead of ``key`` itself. Servers before 2.11 ignore it
                and check ``key``.

        Raises:
            WrongLastSequenceError: The key, its guard or the bucket has another revision; nothing was stored.
            AckTimeoutError: No answer arrived; the value may be stored.
            UsageError: The value is too large for the server; nothing was sent.
        """
        ack = await self.js.publish(
            self._write_subject(key),
            value,
            expected_last_subject_sequence=revision,
            expected_last_subject_filter=None if guard is None else self._prefix + guard,
            expected_last_sequence=bucket_revision,
        )
        return ack.sequence

    async def delete(self, key: str, *, revision: int | None = None, left: bytes = b"") -> int:
        """Delete a value; return the revision of the deletion marker.

        Args:
            key: The key.
            revision: Expected revision of the key. Default: any.
            left: Note in the deletion marker: see :class:`BucketEntry`. Default empty.

        Raises:
            WrongLastSequenceError: The key has another revision; nothing was stored.
            AckTimeoutError: No answer arrived; the marker may be stored.
        """
        ack = await self.js.publish(
            self._write_subject(key),
            left,
            headers={_OPERATION: "DEL"},
            expected_last_subject_sequence=revision,
            ttl=await self._ttl_of_markers(),
        )
        return ack.sequence

    async def entries(self, keys: str) -> list[BucketEntry]:
        """Return the entries of all keys that match a filter, without deleted ones.

        The result may be slightly stale: any replica of the bucket may answer.

        Args:
            keys: Filter with the wildcards of NATS, such as ``group.>``.

        Raises:
            MessageNotFoundError: Writes to the keys came between ten requests and their replies.
        """
        return await self.last((await self.keys(keys))[0])

    async def last(self, keys: Sequence[str]) -> list[BucketEntry]:
        """Return the entries of keys, without those that were deleted or never set.

        The result may be slightly stale: any replica of the bucket may answer.

        Args:
            keys: Names of the keys, without wildcards.

        Raises:
            MessageNotFoundError: As for :meth:`entries`.
        """
        subjects = [self._prefix + key for key in keys]
        found: list[BucketEntry] = []
        for begin in range(0, len(subjects), _BATCH):
            messages = await self._last_messages(subjects[begin : begin + _BATCH])
            found += [self.entry_of(message, message.sequence) for message in messages]
        return [entry for entry in found if entry.value is not None]

    async def _last_messages(self, subjects: list[str]) -> list[StoredMessage]:
        """Read the last message of each subject; leave out the subjects that have none any more.

        The server ends a reply at its size limit. ``pending`` of the last message then tells that more
        messages match. It also ends a reply, with "Message Not Found", at a message that a write has replaced
        since it looked the messages up.

        Raises:
            MessageNotFoundError: Writes ended each of ten requests before the first message.
        """
        stream = await self.handle()
        left = dict.fromkeys(subjects)
        found: list[StoredMessage] = []
        fruitless = 0
        while left:
            before, pending = len(found), 0
            try:
                async for message in stream.get_last_messages(list(left), max_bytes=_BATCH_BYTES):
                    found.append(message)
                    left.pop(message.subject, None)
                    pending = message.pending or 0
            except MessageNotFoundError as exc:
                if exc.description.startswith(_NO_RESULTS):
                    break  # all expired meanwhile
                fruitless = 0 if len(found) > before else fruitless + 1
                if fruitless == _ATTEMPTS:
                    raise
                continue
            if not pending:
                break
        return found

    async def keys(self, keys: str) -> tuple[list[str], int]:
        """Return the keys that match a filter, sorted, and the last revision of the bucket.

        The bucket's leader answers. Keys whose last entry is a deletion are included.

        Args:
            keys: Filter with the wildcards of NATS, such as ``group.>``.
        """
        state = (await (await self.handle()).info(subjects_filter=self._prefix + keys)).state
        return sorted(subject.removeprefix(self._prefix) for subject in state.subjects), state.last_seq

    async def last_revision(self) -> int:
        """Return the highest revision that the bucket ever assigned; 0 if it never had a value.

        Raises:
            StreamNotFoundError: The bucket does not exist any more.
        """
        return (await (await self.handle()).info()).state.last_seq

    def entry_of(self, message: Message | StoredMessage, revision: int) -> BucketEntry:
        """Return the entry that a message of the bucket's stream holds.

        Args:
            message: The message.
            revision: Sequence of the message in the stream.
        """
        is_deleted = message.headers.get(_OPERATION) in _DELETED
        key = message.subject.removeprefix(self._prefix)
        if is_deleted:
            return BucketEntry(key, None, revision, message.data)
        return BucketEntry(key, message.data, revision)

    def _write_subject(self, key: str) -> str:
        return self.js.api.key_subject(self._prefix + key)

    async def _ttl_of_markers(self) -> float | None:
        if self._marker_ttl is None:
            return None
        # A bucket created by others may not allow a TTL, and would refuse the marker.
        is_allowed = (await self.handle()).cached_info.config.allow_msg_ttl
        return self._marker_ttl if is_allowed else None
