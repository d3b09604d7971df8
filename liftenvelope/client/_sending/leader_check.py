"""Check that partitions have leaders, made before messages are published after a loss.

A broker that has just restarted does not know its streams for a moment. Such a broker accepts messages for
partitions that it does not record yet, and those messages are lost without an error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftenvelope._deadlines import Deadline
from liftenvelope._pb import api_pb2
from liftenvelope.errors import LiftEnvelopeError, PermissionDeniedError, UsageTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from liftenvelope.client._brokers.cluster import Cluster

__all__ = ["LOOK_UP", "is_served", "until_served"]

#: Seconds to look for a leader before any broker is used.
LOOK_UP: Final = 1.0


async def until_served(
    cluster: Cluster, partitions: Callable[[], Iterable[tuple[str, int]]], deadline: Deadline
) -> None:
    """Wait until each partition has a leader, or the deadline has passed.

    Args:
        cluster: Finds the leaders.
        partitions: Returns the streams and partitions to check. Called for every attempt.
        deadline: Deadline of the wait.

    Raises:
        UsageTypeError: The function ``broker_selection`` returned no broker.
    """
    attempt = 0
    while not deadline.is_over and not await _are_served(cluster, partitions(), deadline):
        attempt += 1
        await asyncio.sleep(deadline.pause_before(attempt))


async def _are_served(cluster: Cluster, partitions: Iterable[tuple[str, int]], deadline: Deadline) -> bool:
    for stream, partition in partitions:
        if deadline.is_over or not await is_served(cluster, stream, partition, min(LOOK_UP, deadline.left)):
            return False
    return True


async def is_served(cluster: Cluster, stream: str, partition: int, timeout: float = LOOK_UP) -> bool:
    """Return True if the leader of a partition confirms within ``timeout`` seconds that it leads.

    A paused partition, which has no leader, counts as served: a message wakes it.

    Raises:
        UsageTypeError: The function ``broker_selection`` returned no broker.
    """
    deadline = Deadline(timeout)
    request = api_pb2.FetchPartitionMetadataRequest(stream=stream, partition=partition)
    route = cluster.leader_of(stream, partition)
    try:
        info = await cluster.stream(stream, deadline, refresh=True)
        if partition in info.partitions and info.partitions[partition].paused:
            return True
        data = request.SerializeToString()
        await cluster.call("FetchPartitionMetadata", data, route, deadline, f"{stream}[{partition}]")
    except PermissionDeniedError:
        return True  # a client with only the permission to publish can't find it out
    except UsageTypeError:
        raise
    except LiftEnvelopeError:
        return False  # the caller asks again, or publishing shows the error
    return True
