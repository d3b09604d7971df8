"""Opens the Subscribe calls of a subscription."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope._deadlines import Deadline
    from liftenvelope.client._brokers.cluster import Cluster
    from liftenvelope.client.partition_read import PartitionRead
    from liftenvelope.rpc.aio import Call

__all__ = ["HANDSHAKE_TIMEOUT", "open_call"]

#: Seconds to wait for the empty message with which the server confirms a subscription.
HANDSHAKE_TIMEOUT: Final = 5.0


async def open_call(
    cluster: Cluster, read: PartitionRead, deadline: Deadline, *, resume: bool, refresh: bool
) -> tuple[Call, list[bytes], str]:
    """Make one call that continues a read, and wait for its handshake.

    Args:
        cluster: Finds the broker and holds the connections.
        read: The read.
        deadline: Deadline of the handshake.
        resume: Whether the call resumes a paused partition.
        refresh: Whether to fetch new metadata first.

    Returns:
        The call, the messages that came with the handshake, and the address of the broker.

    Raises:
        RpcError: The server refused the call, or did not confirm it in time.
        TransportError: The broker could not be reached.
        NotLeaderError: The partition has no leader.
        StreamDeletedError: The stream is another one than the read began with.
    """
    find = cluster.replica_address if read.read_isr_replica else cluster.leader_address
    address = await find(read.stream, read.partition, deadline, refresh=refresh)
    read.check_stream(await cluster.stream(read.stream, deadline))
    channel = await cluster.connections.channel(address, deadline.left)
    # No deadline: servers can end a call at its deadline with OK, which means a fenced group member.
    call = channel.server_stream("/proto.API/Subscribe", read.request(resume=resume).SerializeToString())
    async with AsyncExitStack() as unless_it_stands:
        unless_it_stands.callback(call.cancel)
        came = await _handshake(call, min(HANDSHAKE_TIMEOUT, deadline.left))
        unless_it_stands.pop_all()
    return call, came, address


async def _handshake(call: Call, timeout: float) -> list[bytes]:
    """Wait for the handshake, and return the messages behind it."""
    try:
        async with asyncio.timeout(timeout):
            came = await call.receive()
    except TimeoutError as exc:
        text = f"the subscription did not stand after {timeout:.3g} s"
        raise RpcError(StatusCode.DEADLINE_EXCEEDED, text) from exc
    if not came:
        raise RpcError(StatusCode.UNAVAILABLE, "the server ended the subscription before it was established")
    if came[0]:
        raise RpcError(StatusCode.INTERNAL, "the server sent a message before its handshake")
    return came[1:]
