"""A cluster as a client sees it: its brokers, what they say, and calls to the right one of them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope._pb import api_pb2
from liftenvelope.client.connections import Connections
from liftenvelope.client.events import MetadataRefreshed
from liftenvelope.client.failures import call_error
from liftenvelope.client.metadata import Metadata, StreamInfo, decode_metadata, make_metadata, merged
from liftenvelope.client.retries import RETRIES, Fate, fate_of, pause_before
from liftenvelope.client.selection import choose_broker
from liftenvelope.errors import (
    CallTimeoutError,
    NoSuchPartitionError,
    NoSuchStreamError,
    NotLeaderError,
    TransportError,
)
from liftenvelope.rpc.status import CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from liftenvelope.client.metadata import BrokerInfo
    from liftenvelope.client.options import Options
    from liftenvelope.client.retries import Retry

__all__ = ["Cluster", "Deadline"]

#: Brokers that don't know a stream may be late to hear of it: they are asked so often, so many seconds apart.
_LATE_ROUNDS: Final = 5
_LATE_PAUSE: Final = 0.05
#: A broker that has just started answers before it has read its own log, for seconds, and knows no streams.
#: So a stream that was there must be missing for so many seconds to be gone.
_GONE_AFTER: Final = 5.0
#: What to ask for where brokers alone are wanted; it need not be there.
_ANY_STREAM: Final = "__cursors"
_MISSING_PAUSE: Final = 0.25


class Deadline:
    """A moment until which something may take."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + timeout

    @property
    def left(self) -> float:
        """Seconds until then, never less than a millisecond, so that they can be asked for."""
        return max(self._end - self._loop.time(), 0.001)

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return self._loop.time() >= self._end

    async def pause(self, attempt: int) -> None:
        """Wait before an attempt, but not longer than until then."""
        await asyncio.sleep(min(pause_before(attempt), self.left))


class Route(Protocol):
    """Finds the address to send a call to. It is asked again for every attempt."""

    def __call__(self, failed: Sequence[str], deadline: Deadline) -> Awaitable[str]:
        """Return an address. ``failed`` are those that earlier attempts failed with, the last one last."""
        ...


class Cluster:
    """Finds brokers, keeps what they say for a while, and makes calls to them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.connections = Connections(options)
        self._brokers: dict[str, BrokerInfo] = {}
        self._streams: dict[str, tuple[StreamInfo, float]] = {}
        self._fetching: dict[str, asyncio.Task[Metadata]] = {}
        #: Streams that were there; since when they are missing, None for those that are there.
        self._seen: dict[str, float | None] = {}
        self._closed = False

    async def close(self) -> None:
        """Close every connection, and stop asking for metadata. Calls that are open fail."""
        self._closed = True
        for task in self._fetching.values():
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
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
    ) -> bytes | None:
        """Call a unary method, again where the table of retries says so.

        Args:
            method: Its name, such as ``CreateStream``.
            request: The request message.
            route: Finds the broker for each attempt.
            deadline: Until when.
            about: What it is about, for the text of errors.
            rule: How the call is made again. Default: as the table says for the method.

        Returns:
            The answer; None where an attempt of unknown outcome turns out to have done it.

        Raises:
            LiftEnvelopeError: What ``failures.call_error`` makes of the last failure.
        """
        rule, failed, uncertain = rule or RETRIES[method], list[str](), False
        refused: CallNotProcessedError | None = None
        while True:
            address = await route(failed, deadline)
            attempt_timeout = min(deadline.left, rule.attempt_timeout or deadline.left)
            try:
                return await self.call_once(method, request, address, attempt_timeout)
            except (RpcError, TransportError) as exc:
                last = exc
                if isinstance(exc, CallNotProcessedError):
                    last = refused = _telling(exc, refused)
                fate = fate_of(last)
                if uncertain and fate is Fate.REFUSED and _code(last) == rule.done_already:
                    return None
                again = fate is not Fate.REFUSED and (rule.repeatable or not fate.is_uncertain)
                if not again or deadline.is_over or self._closed:
                    raise call_error(method, last, about) from last
                uncertain |= fate.is_uncertain
                failed.append(address)
                await deadline.pause(len(failed))
                if deadline.is_over:  # what is left is no time for an attempt
                    raise call_error(method, last, about) from last

    async def call_once(self, method: str, request: bytes, address: str, timeout: float) -> bytes:
        """Call a unary method of one broker, once.

        Raises:
            RpcError: The server refused, or did not answer in time.
            TransportError: The connection failed.
        """
        deadline = Deadline(timeout)
        channel = await self.connections.channel(address, timeout)
        return await channel.unary(f"/proto.API/{method}", request, timeout=deadline.left)

    async def any_broker(self, failed: Sequence[str], deadline: Deadline) -> str:  # noqa: ARG002
        """A route to any broker; those that just failed come last."""
        known = self.addresses()
        fresh = [address for address in known if address not in failed[-(len(known) - 1) :]] or known
        brokers = [broker for broker in self._brokers.values() if broker.address in fresh]
        if not brokers:
            return random.choice(fresh)
        return choose_broker(self.options.broker_selection, brokers, self.connections.latency).address

    def leader_of(self, stream: str, partition: int) -> Route:
        """A route to the leader of a partition."""

        async def route(failed: Sequence[str], deadline: Deadline) -> str:
            return await self.leader_address(stream, partition, deadline, refresh=bool(failed))

        return route

    def addresses(self) -> list[str]:
        """Where brokers are known to be: those that the cluster named, and those that were given."""
        named = [broker.address for broker in self._brokers.values()]
        return list(dict.fromkeys((*named, *self.options.seeds)))

    def forget(self, stream: str) -> None:
        """Ask for a stream's metadata anew when it is needed next."""
        self._streams.pop(stream, None)

    def deleted(self, stream: str) -> None:
        """Note that a stream is gone: it is not waited for, should it be used again."""
        self.forget(stream)
        self._seen.pop(stream, None)

    # Metadata

    async def fetch(
        self, streams: Iterable[str] | None = None, groups: Iterable[str] = (), *, deadline: Deadline
    ) -> Metadata:
        """Ask the cluster: one broker, and others as well where it does not know all there is to know.

        Args:
            streams: Names of streams, None for all.
            groups: Names of groups.
            deadline: Until when.
        """
        wanted, group_names = None if streams is None else set(streams), tuple(groups)
        # Without a name every stream would be listed, of which there may be very many.
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
                continue  # the first answer stands
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
        """Put an answer into the cache; return it with brokers that only earlier answers named."""
        now = asyncio.get_running_loop().time()
        missing = metadata.missing_brokers()
        earlier = [broker for name, broker in self._brokers.items() if name in missing]
        if wanted is None:
            self._streams.clear()
        for name in wanted or ():
            self._streams.pop(name, None)
        self._brokers.update(metadata.brokers)
        if len(self._brokers) > self.options.max_brokers:  # of answers that name others every time
            self._brokers = dict(metadata.brokers)
        self._streams.update({name: (stream, now) for name, stream in metadata.streams.items()})
        self._seen.update(dict.fromkeys(metadata.streams))
        if not earlier:
            return metadata
        return make_metadata(
            (*earlier, *metadata.brokers.values()), metadata.streams.values(), metadata.groups.values()
        )

    async def stream(self, name: str, deadline: Deadline, *, refresh: bool = False) -> StreamInfo:
        """Return a stream, from the cache if it is not too old.

        Raises:
            NoSuchStreamError: No broker knows it, and was not told of it a little later either.
            CallTimeoutError: It was there, and no broker knew it in time. One may only just have started.
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
                raise self._missing(name) from exc  # it was not known when there was an answer
            if (found := metadata.get_stream(name)) is not None:
                return found
            late += 1
            if self._is_gone(name, late):
                raise NoSuchStreamError(StatusCode.NOT_FOUND, f"there is no stream {name!r}")
            if deadline.is_over:
                raise self._missing(name)
            await asyncio.sleep(min(_LATE_PAUSE * late, _MISSING_PAUSE, deadline.left))

    def _is_gone(self, name: str, late: int) -> bool:
        """Whether a stream that no broker knows is not there, after it was missing so often in a row."""
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
            return NoSuchStreamError(StatusCode.NOT_FOUND, f"there is no stream {name!r}")
        return CallTimeoutError(f"stream {name!r} was there and is missing; a broker may have just started")

    async def _fetch_once(self, name: str, deadline: Deadline) -> Metadata:
        """Fetch one stream's metadata; those who ask for the same at the same time share the answer."""
        task = self._fetching.get(name)
        if task is None:
            task = asyncio.create_task(self.fetch([name], deadline=Deadline(self.options.timeout)))
            self._fetching[name] = task
            task.add_done_callback(lambda task: self._fetched(name, task))
        done, _ = await asyncio.wait([task], timeout=deadline.left)
        if not done:
            raise call_error(
                "FetchMetadata",
                RpcError(StatusCode.DEADLINE_EXCEEDED, f"nothing came in {deadline.timeout} s"),
                f"stream {name!r}",
            )
        if task.cancelled():
            raise CallNotProcessedError("the client is closed")
        return task.result()

    def _fetched(self, name: str, task: asyncio.Task[Metadata]) -> None:
        self._fetching.pop(name, None)
        if not task.cancelled():
            task.exception()  # those who wait raise it; all of them may have gone

    async def leader_address(
        self, stream: str, partition: int, deadline: Deadline, *, refresh: bool = False
    ) -> str:
        """Return where the leader of a partition is; wait for one where there is none.

        Raises:
            NoSuchStreamError: There is no such stream.
            NoSuchPartitionError: It has no such partition.
            NotLeaderError: There was no leader until the deadline, or it is not known where it is.
        """
        attempt = 0
        while True:
            found = await self.stream(stream, deadline, refresh=refresh or attempt > 0)
            if partition not in found.partitions:
                if refresh or attempt:
                    raise NoSuchPartitionError(
                        StatusCode.NOT_FOUND,
                        f"stream {stream!r} has no partition {partition}, but {len(found.partitions)} from 0",
                    )
            else:
                leader = self._brokers.get(found.partitions[partition].leader)
                if leader is not None:
                    return leader.address
            if deadline.is_over:
                text = f"{stream}[{partition}] had no leader for {deadline.timeout} s"
                raise NotLeaderError(StatusCode.FAILED_PRECONDITION, text)
            attempt += 1
            await deadline.pause(attempt)

    async def replica_address(
        self, stream: str, partition: int, deadline: Deadline, *, refresh: bool = False
    ) -> str:
        """Return where one of a partition's replicas in sync is, chosen as the options say."""
        found = await self.stream(stream, deadline, refresh=refresh)
        info = found.partitions.get(partition)
        brokers = [self._brokers[name] for name in (info.isr if info else ()) if name in self._brokers]
        if not brokers:
            return await self.leader_address(stream, partition, deadline, refresh=refresh)
        return choose_broker(self.options.broker_selection, brokers, self.connections.latency).address

    async def broker_address(self, broker_id: str, deadline: Deadline) -> str:
        """Return where a broker is.

        Raises:
            NotLeaderError: No broker of that id is known.
        """
        if broker_id not in self._brokers:
            await self.fetch([], deadline=deadline)
        if broker_id not in self._brokers:
            raise NotLeaderError(StatusCode.FAILED_PRECONDITION, f"no broker {broker_id!r} is known")
        return self._brokers[broker_id].address


def _telling(error: CallNotProcessedError, before: CallNotProcessedError | None) -> CallNotProcessedError:
    """Of two reasons why there is no connection, the one that says more than that the time was up."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, TimeoutError):
        cause = cause.__cause__
    return error if cause is None or before is None else before


def _code(error: RpcError | TransportError) -> int | None:
    return error.code if isinstance(error, RpcError) else None


def _only(metadata: Metadata, names: set[str]) -> Metadata:
    streams = [stream for name, stream in metadata.streams.items() if name in names]
    return make_metadata(metadata.brokers.values(), streams, metadata.groups.values())
