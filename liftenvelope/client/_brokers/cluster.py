"""Cluster access: broker discovery, metadata cache, and unary calls with routing and retries."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope._backoff import pause_before
from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.client._brokers.connections import Connections
from liftenvelope.client._brokers.known import KnownBrokers
from liftenvelope.client._brokers.selection import choose_broker
from liftenvelope.client._brokers.shared_requests import SharedRequests
from liftenvelope.client._events import MetadataRefreshed
from liftenvelope.client._recent import MOST_NAMES, note
from liftenvelope.client.failures import call_error, no_such_partition, no_such_stream
from liftenvelope.client.metadata import Metadata, StreamInfo, decode_metadata, make_metadata, merged
from liftenvelope.client.retries import RETRIES, Fate, fate_of
from liftenvelope.errors import (
    CallTimeoutError,
    NoSuchStreamError,
    NotLeaderError,
    TransportError,
    UsageError,
)
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from liftenvelope.client.options import Options
    from liftenvelope.client.retries import Retry

__all__ = ["Cluster"]

#: Metadata requests for a never-seen stream before it counts as missing: brokers learn of a new stream late.
_LATE_ROUNDS: Final = 5
#: Seconds for which a stream that once existed must be missing to count as deleted. A broker that has just
#: started answers for seconds before it has read its own log, and then knows no streams.
_GONE_AFTER: Final = 5.0
#: Stream to name in a request for brokers only: a request without names would list every stream. The stream
#: need not exist.
_ANY_STREAM: Final = "__cursors"
#: Streams whose metadata may be cached before outdated metadata is dropped.
_FEW: Final = 1_000
#: Longest pause in seconds between two requests for a missing stream.
_MISSING_PAUSE: Final = 0.25


class Route(Protocol):
    """Finds the address to send a call to. Called for every attempt."""

    def __call__(self, failed: Sequence[str], deadline: Deadline) -> Awaitable[str]:
        """Return an address. ``failed`` lists the addresses of failed attempts, the latest one last."""
        ...


class Cluster:
    """Finds brokers, caches their metadata, and makes calls to them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.connections = Connections(options)
        self._brokers = KnownBrokers(options.max_brokers)
        self._streams: dict[str, tuple[StreamInfo, float]] = {}
        # Number of cached streams at which outdated ones are dropped.
        self._tidy_at = _FEW
        self._fetching: SharedRequests[str, Metadata] = SharedRequests("FetchMetadata")
        #: Streams that existed lately -> loop time since which each is missing, None while it exists.
        self._seen: dict[str, float | None] = {}
        # Set by the first call: a future of one loop cannot be woken safely from another loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def check_loop(self) -> None:
        """Check that the running event loop is the client's; the first call makes it so.

        Raises:
            UsageError: The client belongs to another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(
                "the client was first used in another event loop, and belongs to that: make one in each "
                "loop, or one with connect_blocking(), which any thread may use"
            )

    async def close(self) -> None:
        """Close every connection and cancel pending metadata requests. Open calls fail."""
        self._closed = True
        await self._fetching.close()
        await self.connections.close()

    # Calls

    async def call(
        self,
        method: str,
        request: bytes,
        route: Route,
        deadline: Deadline,
        about: str,
        *,
        rule: Retry | None = None,
        on_channel: Callable[[], None] | None = None,
    ) -> bytes | None:
        """Call a unary method, and retry it according to its row in ``RETRIES``.

        An attempt whose outcome is unknown may have been applied. If a later attempt is then refused with the
        code of "already done", the earlier one was applied and the call counts as successful.

        Args:
            method: Name of the method, such as ``CreateStream``.
            request: The serialized request.
            route: Finds the broker for each attempt.
            deadline: Deadline over all attempts.
            about: Subject of the call, for error texts.
            rule: Retry rule. Default: the method's row in ``RETRIES``.
            on_channel: Called when an attempt has a connection, right before it sends the request.

        Returns:
            The serialized response; None if an earlier attempt of unknown outcome turns out to be applied.

        Raises:
            LiftEnvelopeError: The last failure, as ``failures.call_error`` translates it.
        """
        rule, failed, uncertain, late = rule or RETRIES[method], list[str](), False, 0
        refused: CallNotProcessedError | None = None
        before: RpcError | TransportError | None = None
        while True:
            address = await route(failed, deadline)
            attempt_timeout = min(deadline.left, rule.timeout_after(late) or deadline.left)
            try:
                return await self.call_once(method, request, address, attempt_timeout, on_channel)
            except (RpcError, TransportError) as exc:
                last = exc
                if isinstance(exc, CallNotProcessedError):
                    last = refused = _telling(exc, refused)
                fate = fate_of(last)
                if uncertain and fate is Fate.REFUSED and _code(last) == rule.done_already:
                    return None
                again = rule.allows(fate, len(failed) + 1)
                late += fate is Fate.TIMED_OUT
                had_time = not rule.repeatable or attempt_timeout >= (rule.attempt_timeout or 0.0)
                if fate is not Fate.TIMED_OUT or had_time:
                    before = last
                else:
                    last = before or last  # says more than that this attempt had little time
                if not again or deadline.is_over or self._closed:
                    raise call_error(method, last, about) from last
                uncertain |= fate.is_uncertain
                failed.append(address)
                await asyncio.sleep(deadline.pause_before(len(failed)))
                if deadline.is_over:  # no time is left for another attempt
                    raise call_error(method, last, about) from last

    async def call_once(
        self,
        method: str,
        request: bytes,
        address: str,
        timeout: float,
        on_channel: Callable[[], None] | None = None,
    ) -> bytes:
        """Call a unary method of one broker, once.

        ``on_channel`` is called when there is a connection, right before the request is sent.

        Raises:
            RpcError: The server refused the call, or did not answer in time.
            TransportError: The connection failed.
        """
        deadline = Deadline(timeout)
        channel = await self.connections.channel(address, timeout)
        if on_channel is not None:
            on_channel()
        return await channel.unary(f"/proto.API/{method}", request, timeout=deadline.left)

    async def any_broker(self, failed: Sequence[str], deadline: Deadline) -> str:  # noqa: ARG002
        """Route a call to any broker; brokers that just failed or could not be reached are used last."""
        known = self.addresses()
        fresh = [address for address in known if address not in failed[-(len(known) - 1) :]] or known
        fresh = [address for address in fresh if not self.connections.is_avoided(address)] or fresh
        brokers = self._brokers.preferred(fresh)
        if not brokers:
            return random.choice(fresh)
        return choose_broker(self.options.broker_selection, brokers, self.connections.latency).address

    def leader_of(self, stream: str, partition: int, *, wait: bool = True) -> Route:
        """Return a route to the leader of a partition. It refreshes the metadata after a failed attempt.

        Args:
            stream: Name of the stream.
            partition: Number of the partition.
            wait: Wait for a leader if the partition has none.
        """

        async def route(failed: Sequence[str], deadline: Deadline) -> str:
            return await self.leader_address(stream, partition, deadline, refresh=bool(failed), wait=wait)

        return route

    def addresses(self) -> list[str]:
        """Return the known broker addresses: first those in the metadata, then the seeds."""
        named = [broker.address for broker in self._brokers]
        return list(dict.fromkeys((*named, *self.options.seeds)))

    def forget(self, stream: str) -> None:
        """Drop a stream's cached metadata; the next use fetches it again."""
        self._streams.pop(stream, None)

    def deleted(self, stream: str) -> None:
        """Record a stream as deleted: a later use does not wait for it to reappear."""
        self.forget(stream)
        self._seen.pop(stream, None)

    # Metadata

    async def fetch(
        self, streams: Iterable[str] | None = None, groups: Iterable[str] = (), *, deadline: Deadline
    ) -> Metadata:
        """Fetch metadata from one broker, and from others if its answer is incomplete.

        Args:
            streams: Names of streams, None for all.
            groups: Names of groups.
            deadline: Deadline over all requests.
        """
        wanted, group_names = None if streams is None else set(streams), tuple(groups)
        # A request without names lists every stream, and there may be very many.
        names = [_ANY_STREAM] if wanted is not None and not wanted else sorted(wanted or ())
        request = api_pb2.FetchMetadataRequest(streams=names, groups=group_names)
        data = request.SerializeToString()
        found = await self._ask(data, wanted, self.any_broker, deadline)
        others = [address for address in self.addresses() if address != found[1]]
        metadata = found[0]
        for address in others:
            missing = (wanted or set()) - metadata.streams.keys() or set(group_names) - metadata.groups.keys()
            if deadline.is_over or (not missing and not metadata.missing_brokers()):
                break
            try:
                answer = await self.call_once("FetchMetadata", data, address, min(deadline.left, 1.0))
                metadata = merged(metadata, self._decoded(answer))
            except (RpcError, TransportError):
                continue  # the answer so far is good enough
        kept = self._keep(metadata, wanted)
        return kept if wanted is None else _only(kept, wanted)

    async def _ask(
        self, data: bytes, wanted: set[str] | None, route: Route, deadline: Deadline
    ) -> tuple[Metadata, str]:
        asked: list[str] = []

        async def noted(failed: Sequence[str], deadline: Deadline) -> str:
            asked.append(await route(failed, deadline))
            return asked[-1]

        answer = await self.call("FetchMetadata", data, noted, deadline, "metadata")
        metadata = self._decoded(answer or b"")
        if wanted:
            metadata = _only(metadata, wanted)
        self.options.notify(MetadataRefreshed(asked[-1], tuple(sorted(wanted or ()))))
        return metadata, asked[-1]

    def _decoded(self, answer: bytes) -> Metadata:
        return decode_metadata(answer, self.options.max_brokers, self.options.max_partitions)

    def _keep(self, metadata: Metadata, wanted: set[str] | None) -> Metadata:
        """Cache an answer; return it completed with the missing brokers that earlier answers had."""
        now = asyncio.get_running_loop().time()
        missing = metadata.missing_brokers()
        earlier = [broker for broker in self._brokers if broker.id in missing]
        if wanted is None:
            self._streams.clear()
            self._forget_gone(now)
        for name in wanted or ():
            self._streams.pop(name, None)
        self._brokers.update(metadata.brokers, missing, now)
        self._streams.update({name: (stream, now) for name, stream in metadata.streams.items()})
        for name in metadata.streams:
            note(self._seen, name, None, max(MOST_NAMES, 2 * len(self._streams)))
        if len(self._streams) > self._tidy_at:
            self._drop_outdated(now)
        if not earlier:
            return metadata
        return make_metadata(
            (*earlier, *metadata.brokers.values()), metadata.streams.values(), metadata.groups.values()
        )

    def _drop_outdated(self, now: float) -> None:
        """Bound the cache of a client that uses ever new streams, at a cost that is constant per stream."""
        oldest = now - self.options.metadata_max_age
        self._streams = {name: kept for name, kept in self._streams.items() if kept[1] > oldest}
        self._tidy_at = max(_FEW, 2 * len(self._streams))

    def _forget_gone(self, now: float) -> None:
        """Forget streams that have been missing for long. Called when all streams are listed."""
        since = {name: now if at is None else at for name, at in self._seen.items()}
        self._seen = {name: at for name, at in since.items() if now - at < _GONE_AFTER}

    async def stream(self, name: str, deadline: Deadline, *, refresh: bool = False) -> StreamInfo:
        """Return a stream's metadata, from the cache if it is younger than ``metadata_max_age``.

        Raises:
            NoSuchStreamError: No broker knows the stream, after a few requests.
            CallTimeoutError: The stream existed before, and no broker knew it before the deadline. A broker
                may have just started.
        """
        kept = self._streams.get(name)
        now = asyncio.get_running_loop().time()
        if kept is not None and not refresh and now - kept[1] < self.options.metadata_max_age:
            return kept[0]
        late = 0
        while True:
            try:
                metadata = await self._fetch_once(name, deadline)
            except CallTimeoutError as exc:
                if not late:
                    raise
                raise self._missing(name) from exc  # earlier answers did not have the stream
            if (found := metadata.get_stream(name)) is not None:
                return found
            late += 1
            if self._is_gone(name, late):
                raise no_such_stream(name)
            if deadline.is_over:
                raise self._missing(name)
            pause = pause_before(late, longest=_MISSING_PAUSE, jitter=0.0)
            await asyncio.sleep(min(pause, deadline.left))

    def _is_gone(self, name: str, late: int) -> bool:
        """Return True if a stream that is missing from ``late`` answers in a row counts as nonexistent."""
        if name not in self._seen:
            return late >= _LATE_ROUNDS
        now = asyncio.get_running_loop().time()
        since = self._seen[name]
        if since is None:
            since = self._seen[name] = now
        if now - since < _GONE_AFTER:
            return False
        del self._seen[name]
        return True

    def _missing(self, name: str) -> NoSuchStreamError | CallTimeoutError:
        if name not in self._seen:
            return no_such_stream(name)
        return CallTimeoutError(
            f"stream {name!r} was found before and is missing now: a broker may have just started"
        )

    async def _fetch_once(self, name: str, deadline: Deadline) -> Metadata:
        """Fetch the metadata of one stream. Concurrent callers for the same name share one call."""

        def fetch() -> Coroutine[None, None, Metadata]:
            return self.fetch([name], deadline=Deadline(self.options.timeout))

        return await self._fetching.result(name, fetch, deadline, f"stream {name!r}")

    async def leader_address(
        self, stream: str, partition: int, deadline: Deadline, *, refresh: bool = False, wait: bool = True
    ) -> str:
        """Return the address of a partition's leader; wait if the partition has none, unless told not to.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: The stream has no such partition.
            NotLeaderError: The partition had no leader with a known address before the deadline.
        """
        attempt = 0
        while True:
            found = await self.stream(stream, deadline, refresh=refresh or attempt > 0)
            if partition not in found.partitions:
                if refresh or attempt:
                    raise no_such_partition(stream, partition, len(found.partitions))
            else:
                leader = self._brokers.get(found.partitions[partition].leader)
                if leader is not None:
                    return leader.address
            if deadline.is_over or not wait:
                text = f"{stream}[{partition}] had no leader" + (f" for {deadline.timeout} s" if wait else "")
                raise NotLeaderError(StatusCode.FAILED_PRECONDITION, text)
            attempt += 1
            await asyncio.sleep(deadline.pause_before(attempt))

    async def replica_address(
        self, stream: str, partition: int, deadline: Deadline, *, refresh: bool = False
    ) -> str:
        """Return the address of an in-sync replica, chosen by ``broker_selection``; else the leader's.

        Replicas that could not be reached a short time ago are used last: they stay in sync for a while.
        """
        found = await self.stream(stream, deadline, refresh=refresh)
        info = found.partitions.get(partition)
        replicas = [self._brokers.get(name) for name in (info.isr if info else ())]
        brokers = [broker for broker in replicas if broker is not None]
        if not brokers:
            return await self.leader_address(stream, partition, deadline, refresh=refresh)
        reached = [broker for broker in brokers if not self.connections.is_avoided(broker.address)]
        return choose_broker(
            self.options.broker_selection, reached or brokers, self.connections.latency
        ).address

    async def broker_address(self, broker_id: str, deadline: Deadline) -> str:
        """Return the address of a broker.

        Raises:
            NotLeaderError: No broker with that id is known.
        """
        if broker_id not in self._brokers:
            await self.fetch([], deadline=deadline)
        broker = self._brokers.get(broker_id)
        if broker is None:
            raise NotLeaderError(StatusCode.FAILED_PRECONDITION, f"no broker {broker_id!r} is known")
        return broker.address


def _telling(error: CallNotProcessedError, before: CallNotProcessedError | None) -> CallNotProcessedError:
    """Return the more specific of two connection failures: ``before`` if ``error`` is only a timeout."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, TimeoutError):
        cause = cause.__cause__
    return error if cause is None or before is None else before


def _code(error: RpcError | TransportError) -> int | None:
    return error.code if isinstance(error, RpcError) else None


def _only(metadata: Metadata, names: set[str]) -> Metadata:
    streams = [stream for name, stream in metadata.streams.items() if name in names]
    return make_metadata(metadata.brokers.values(), streams, metadata.groups.values())
