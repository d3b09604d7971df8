"""SetCursor and FetchCursor: stores the offsets of readers in a bucket.

Liftbridge stores cursors in an internal stream, and the leader of one of its partitions serves each cursor. A
bucket needs no leader: every gateway serves every cursor. As in Liftbridge, any offset is accepted, -1 reads
like a missing cursor, the stream need not exist, and a cursor outlives its stream. Unlike in Liftbridge,
cursors do not expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakValueDictionary

from liftenvelope._checks import MAX_INT64
from liftenvelope._pb import api_pb2
from liftenvelope.errors import InternalError, WrongLastSequenceError
from liftenvelope.gateway._protocol.names import encode_name
from liftenvelope.gateway._protocol.requests import read_request
from liftenvelope.jetstream.bucket import Bucket, BucketEntry
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway._clients.quotas import Quotas
    from liftenvelope.gateway.limits import Limits
    from liftenvelope.jetstream.context import JetStream

__all__ = ["CursorService", "cursor_key"]

BUCKET: Final = "lift_cursors"
#: Most keys that are known to be stored.
_MOST_KNOWN: Final = 100_000
#: Offset that means "no cursor".
_MISSING: Final = -1


def cursor_key(cursor_id: str, stream: str, partition: int) -> str:
    """Return the bucket key of a cursor.

    Raises:
        RpcError: INVALID_ARGUMENT: a name is missing or contains a comma, or the partition is negative.
            Liftbridge joins the three by commas without quoting, so two cursors could collide.

    Example:
        >>> cursor_key("my reader", "a.b", 3)
        'my=20reader.a=2Eb.3'
    """
    for name, value in (("stream", stream), ("cursorId", cursor_id)):
        if not value:
            raise RpcError(StatusCode.INVALID_ARGUMENT, f"No {name} provided")
        if "," in value:
            raise RpcError(StatusCode.INVALID_ARGUMENT, f"{name} must have no comma, got {value!r}")
    if partition < 0:
        raise RpcError(StatusCode.INVALID_ARGUMENT, f"partition must be at least 0, got {partition}")
    return f"{encode_name(cursor_id)}.{encode_name(stream)}.{partition}"


@dataclass(slots=True, weakref_slot=True)
class _Writes:
    """Writes of one cursor.

    Attributes:
        value: Offset of the newest call.
        requested: Number of the newest call.
        stored: Number of the newest call whose offset, or a newer one, is stored.
        lock: Held by the call that stores.
    """

    value: bytes = b""
    requested: int = 0
    stored: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def request(self, value: bytes) -> int:
        """Note the offset of a new call, and return the call's number."""
        self.value = value
        self.requested += 1
        return self.requested


class CursorService:
    """Serves the cursor methods of the API.

    Args:
        bucket: Bucket of the cursors.
        limits: Bounds of the names in requests.
        quotas: Counts the new cursors of clients.
    """

    def __init__(self, bucket: Bucket, limits: Limits, quotas: Quotas) -> None:
        self._bucket = bucket
        self._limits = limits
        self._quotas = quotas
        # Hashes of keys that are stored. They need no check whether their cursor is new.
        self._known: set[int] = set()
        # Writes by key. Only calls refer to them, so max_calls bounds their number.
        self._writes: WeakValueDictionary[str, _Writes] = WeakValueDictionary()

    @classmethod
    async def open(cls, js: JetStream, limits: Limits, quotas: Quotas, *, replicas: int = 1) -> Self:
        """Create the bucket if it does not exist; return the service.

        Args:
            js: JetStream.
            limits: Bounds of the names in requests.
            quotas: Counts the new cursors of clients.
            replicas: Number of replicas of the bucket. Default 1.
        """
        bucket = Bucket(js, BUCKET, replicas=replicas)
        await bucket.create()
        # In a cluster, a new leader may not know a bucket created just now. The error makes the gateway start
        # again.
        await bucket.last_revision()
        return cls(bucket, limits, quotas)

    async def set(self, raw: bytes, client: str = "") -> bytes:
        """Serve SetCursor. Of overlapping calls for one cursor, the last one to start determines its offset.

        Args:
            raw: The request.
            client: Name of the client. Default: one without a certificate.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: the client would exceed its quota of new cursors.
                INVALID_ARGUMENT: a name is invalid.
        """
        request = read_request(api_pb2.SetCursorRequest, raw, self._limits)
        key = cursor_key(request.cursorId, request.stream, request.partition)
        # A put may take several requests, for a check or as a retry: a later one that went ahead would be
        # overwritten. So a cursor has one put at a time, which stores the newest offset of all calls.
        writes = self._writes.setdefault(key, _Writes())
        number = writes.request(b"%d" % request.offset)
        async with writes.lock:
            if writes.stored < number:
                newest, value = writes.requested, writes.value
                await self._store(client, key, value)
                writes.stored = newest
        return api_pb2.SetCursorResponse().SerializeToString()

    async def _store(self, client: str, key: str, value: bytes) -> None:
        if hash(key) in self._known or not await self._store_new(client, key, value):
            await self._bucket.put(key, value)

    async def _store_new(self, client: str, key: str, value: bytes) -> bool:
        is_new = await self._is_new(client, key, value)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add(hash(key))
        return is_new

    async def _is_new(self, client: str, key: str, value: bytes) -> bool:
        """Store a cursor if it is new and the client may have one more; return False if it is not new."""
        try:
            if not self._quotas.count_cursor(client, key):
                return False  # a call before this one made it, or failed
        except RpcError:
            if (await self._bucket.get(key)).value is None:
                raise
            return False
        try:
            await self._bucket.put(key, value, revision=0)
        except WrongLastSequenceError:
            self._quotas.uncount_cursor(client, key)
            return False
        return True

    async def fetch(self, raw: bytes) -> bytes:
        """Serve FetchCursor."""
        request = read_request(api_pb2.FetchCursorRequest, raw, self._limits)
        key = cursor_key(request.cursorId, request.stream, request.partition)
        return api_pb2.FetchCursorResponse(offset=await self._offset(key)).SerializeToString()

    async def offsets(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the offsets of the cursors that exist and can be read, by key. They may be slightly stale.

        Raises:
            LiftEnvelopeError: JetStream does not answer.
        """
        found: dict[str, int] = {}
        for entry in await self._bucket.last(keys):
            with suppress(InternalError):  # one damaged cursor must not hide the others
                found[entry.key] = _parsed(entry)
        return found

    async def _offset(self, key: str) -> int:
        # Not a direct get: a replica that lags could answer it, and the cursor would go back.
        return _parsed(await self._bucket.get(key))


def _parsed(entry: BucketEntry) -> int:
    if not entry.value:
        return _MISSING  # never set, or deleted by hand
    text = f"cursor {entry.key!r} can't be read: {entry.value[:40]!r}"
    try:
        offset = int(entry.value)
    except ValueError as exc:
        raise InternalError(text) from exc
    if not -MAX_INT64 - 1 <= offset <= MAX_INT64:
        raise InternalError(text)
    return offset
