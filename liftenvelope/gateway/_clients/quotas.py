"""Quotas on the streams, partitions, cursors, subscriptions and pending bytes of a client.

A client is identified by the common name of its certificate. A stream's record names its creator, so every
gateway counts the same streams, even after a restart. Subscriptions, pending bytes and the cursors that a
client has made since the start are counted per gateway.

For streams, partitions and cursors, all clients without a certificate count as one, because nothing lasting
distinguishes them. For subscriptions and pending bytes, they are told apart by their addresses, as for calls,
so that one of them can't keep the others out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from liftenvelope._checks import RESERVED
from liftenvelope.gateway._clients.authorization import client_name
from liftenvelope.gateway._clients.pending import Held, PendingBytes
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftenvelope.gateway._cluster.records import StreamRecord
    from liftenvelope.gateway._cluster.registry import StreamRegistry
    from liftenvelope.gateway.limits import Limits
    from liftenvelope.rpc.server import Handler, ServerCall

__all__ = ["Quotas"]


class _Client(NamedTuple):
    """Client of a call: its name or, without one, its address; see ``rpc.places.client_of``."""

    name: str
    address: str


class Quotas:
    """Counts what clients hold and enforces their limits.

    Args:
        limits: Limits of each client.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._subscriptions: Counter[_Client] = Counter()
        # By client: hashes of the keys of new cursors. A key set twice, as after a timeout, counts once.
        self._cursors: dict[str, set[int]] = {}
        most = limits.max_pending_bytes_per_client
        self._pending = PendingBytes(most, limits.max_pending_bytes)
        self._pending_on_nats = PendingBytes(most, most)

    def check_stream(
        self, registry: StreamRegistry, record: StreamRecord, making: Iterable[StreamRecord] = ()
    ) -> None:
        """Check that the owner of a new stream stays within its quota.

        The check is not atomic across gateways. If a client creates streams at several gateways at the same
        moment, it may exceed the quota by one stream per gateway.

        Args:
            registry: The existing streams.
            record: Record of the new stream.
            making: Records of other streams that are being created, stored or not. Default none.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: the new stream would exceed the client's quota of streams or
                partitions.
        """
        others = {other.name: other for other in (*making, *registry, *registry.unfinished())}
        own = [
            other
            for name, other in others.items()
            if other.owner == record.owner and name not in RESERVED and name != record.name
        ]
        if len(own) >= (most := self._limits.max_streams_per_client):
            raise _exhausted(record.owner, f"{len(own)} streams", "max_streams_per_client", most)
        count = sum(len(other.partitions) for other in own)
        if count + len(record.partitions) > (most := self._limits.max_partitions_per_client):
            text = f"{count} partitions, and {len(record.partitions)} more asked for"
            raise _exhausted(record.owner, text, "max_partitions_per_client", most)

    def pending(self, call: ServerCall) -> Held:
        """Return the pending bytes of a call that waits for room instead of being refused."""
        return self._pending.of(_client_of(call))

    def pending_on_nats(self) -> Held:
        """Return pending bytes of the publishers on NATS, which count as one client."""
        return self._pending_on_nats.of("")

    def hold(self, call: ServerCall, size: int) -> Held:
        """Count the bytes of a request as pending.

        Args:
            call: The call of the request.
            size: Size of the request in bytes.

        Returns:
            A context manager that counts the bytes until it is left.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: the client would exceed its quota of pending bytes.
        """
        held = self.pending(call)
        if (shortage := held.add_or_refuse(size)) is not None:
            limits = self._limits
            client, limit, most = (
                (None, "max_pending_bytes", limits.max_pending_bytes)
                if shortage.is_of_all
                else (_client_of(call), "max_pending_bytes_per_client", limits.max_pending_bytes_per_client)
            )
            before = ", others waiting for room" if shortage.is_waiting else ""
            text = f"{shortage.used} bytes of requests pending{before}, and {size} more asked for"
            error = _exhausted(client, text, limit, most)
            raise RpcError(error.code, f"{error.description}: wait for answers before sending more")
        return held

    def count_cursor(self, client: str, key: str) -> bool:
        """Count a cursor as new; return False if it was counted before.

        Args:
            client: Name of the client.
            key: Key of the cursor.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: the client would exceed its quota of new cursors.
        """
        made, most = self._cursors.setdefault(client, set()), self._limits.max_cursors_per_client
        if hash(key) in made:
            return False
        if len(made) >= most:
            text = f"{len(made)} new cursors since this gateway started"
            raise _exhausted(client, text, "max_cursors_per_client", most)
        made.add(hash(key))
        return True

    def uncount_cursor(self, client: str, key: str) -> None:
        """Take back :meth:`count_cursor`, because the cursor was not new."""
        self._cursors[client].discard(hash(key))

    def limited(self, subscribe: Handler) -> Handler:
        """Wrap the handler of Subscribe so that it refuses clients that have reached their quota.

        The returned handler raises RpcError with RESOURCE_EXHAUSTED.
        """

        async def serve(call: ServerCall) -> None:
            client = _client_of(call)
            count, most = self._subscriptions[client], self._limits.max_subscriptions_per_client
            if count >= most:
                text = f"{count} subscriptions at this gateway"
                raise _exhausted(client, text, "max_subscriptions_per_client", most)
            self._subscriptions[client] += 1
            try:
                await subscribe(call)
            finally:
                self._subscriptions[client] -= 1
                if not self._subscriptions[client]:
                    del self._subscriptions[client]

        return serve


def _client_of(call: ServerCall) -> _Client:
    name = client_name(call.peer_certificate)
    return _Client(name, "" if name else call.client)


def _exhausted(client: str | _Client | None, text: str, limit: str, most: int) -> RpcError:
    """Return the error of a client, or of all clients, above a limit."""
    name, address = client if isinstance(client, _Client) else (client, "")
    who = f"client {name!r}" if name else "clients without a certificate"
    who = "all clients" if client is None else f"{who} at {address}" if address else who
    return RpcError(
        StatusCode.RESOURCE_EXHAUSTED, f"quota of {who} used up: {text} (limit {limit} is {most})"
    )
