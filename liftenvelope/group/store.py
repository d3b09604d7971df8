"""A KV bucket of JetStream, of which every key is changed by compare-and-set alone.

The layout is that of every NATS client (ADR-8), so ``nats kv`` shows it. It is read through JetStream itself,
which gives what was stored last, and errors that can be told apart.
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
#: How long the mark stays that a deleted key leaves, in seconds: long enough for any watcher to see it.
_MARK_TTL: Final = 3600.0
#: How many keys are read at once. The server answers for 1,024 subjects at most.
_AT_ONCE: Final = 500
_FIRST_PAUSE: Final = 0.05


class Conflict(Exception):  # noqa: N818 - no failure, but the answer to a question
    """Somebody else has changed the key."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a key has.

    Attributes:
        value: Its value, None if it was deleted or never was.
        revision: What a change of it must expect.
    """

    value: bytes | None
    revision: int


class Store:
    """The bucket.

    Args:
        js: JetStream.
        bucket: The bucket's name.
        replicas: How many servers keep it, if it has to be made.
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
        """Make the bucket, or find it, for as long as that fails for the time being.

        Raises:
            GroupUnavailableError: JetStream did not answer in ``patience`` seconds.
            JetStreamError: It refused.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            try:
                with _unavailable("the bucket could not be made"):
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
            # Somebody made it with other replicas, or keeps it in memory: that is theirs to decide.
            return await self._js.stream(self._config.name)

    def _opened(self) -> Stream:
        assert self._stream is not None
        return self._stream

    async def get(self, key: str) -> Entry:
        """What a key has, as the stream's leader knows it.

        Raises:
            GroupUnavailableError: That could not be found out.
        """
        with _unavailable(f"key {key!r} could not be read"):
            try:
                subject = self._prefix + key
                message = await self._opened().get_message(last_by_subject=subject, direct=False)
            except MessageNotFoundError:
                return Entry(None, 0)
            return _entry(message)

    async def put(self, key: str, value: bytes, revision: int) -> int:
        """Change a key that has that revision, and return the new one.

        Raises:
            Conflict: It has another revision.
            GroupUnavailableError: Whether it was changed is unknown.
            GroupLimitError: The value is too large.
        """
        with _unavailable(f"key {key!r} could not be written"):
            try:
                ack = await self._js.publish(
                    self._js.api.key_subject(self._prefix + key),
                    value,
                    expected_last_subject_sequence=revision,
                )
            except WrongLastSequenceError as exc:
                raise Conflict(key) from exc
            except UsageError as exc:
                raise GroupLimitError(f"key {key!r} would become too large: {exc}") from exc
            return ack.sequence

    async def delete(self, key: str, revision: int) -> None:
        """Delete a key that has that revision.

        Raises:
            Conflict: It has another revision.
            GroupUnavailableError: Whether it was deleted is unknown.
        """
        with _unavailable(f"key {key!r} could not be deleted"):
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
        """What all keys have that begin with ``kind`` and a dot, by the rest of the key; deleted ones not.

        It may be a little behind: any server that keeps the bucket may answer.

        Raises:
            GroupUnavailableError: That could not be found out.
        """
        head = f"{self._prefix}{kind}."
        found: dict[str, Entry] = {}
        with _unavailable(f"the keys {kind!r} could not be read"):
            subjects = sorted((await self._opened().info(subjects_filter=f"{head}>")).state.subjects)
            for begin in range(0, len(subjects), _AT_ONCE):
                answers = self._opened().get_last_messages(subjects[begin : begin + _AT_ONCE])
                try:
                    async for message in answers:
                        found[message.subject.removeprefix(head)] = _entry(message)
                except MessageNotFoundError:
                    continue  # they have gone meanwhile
        return {key: entry for key, entry in found.items() if entry.value is not None}

    async def last_sequence(self) -> int:
        """The highest revision that the bucket ever gave.

        Raises:
            GroupUnavailableError: That could not be found out.
        """
        with _unavailable("the bucket could not be asked"):
            return (await self._opened().info()).state.last_seq


def _entry(message: StoredMessage) -> Entry:
    return Entry(None if _OPERATION in message.headers else message.data, message.sequence)


@contextlib.contextmanager
def _unavailable(what: str) -> Iterator[None]:
    try:
        yield
    except (AckTimeoutError, CallTimeoutError, JetStreamError, TransportError) as exc:
        raise GroupUnavailableError(f"{what}: {exc}") from exc
