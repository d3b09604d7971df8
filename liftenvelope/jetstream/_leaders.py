"""Change of the leader of a stream or a consumer in a cluster.

The server answers a request with an unknown preferred server by an error for a stream, and not at all for a
consumer. It answers for a single replica as if the leader had changed. So both are checked here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from liftenvelope._deadlines import Deadline
from liftenvelope.errors import (
    CallTimeoutError,
    ConsumerNotFoundError,
    JetStreamError,
    StreamNotFoundError,
    UsageError,
)
from liftenvelope.jetstream.api import Api
from liftenvelope.jetstream.infos import ClusterInfo

__all__ = ["step_down"]

#: Seconds between two looks for the new leader, and for one answer: without a leader nobody answers.
_PAUSE: Final = 0.1
_ANSWER: Final = 1.0
#: Elections that a preferred server may lose. One that is too far behind loses all of them.
_ELECTIONS: Final = 3


class _Info(Protocol):
    @property
    def cluster(self) -> ClusterInfo | None: ...


async def step_down(
    api: Api,
    path: str,
    info: Callable[[float], Awaitable[_Info]],
    preferred: str | None,
    timeout: float | None,
) -> str:
    """Make the leader step down; return the name of the new one.

    Args:
        api: JetStream's API.
        path: Subject of the request, such as ``STREAM.LEADER.STEPDOWN.ORDERS``.
        info: Asks for the present state, within seconds.
        preferred: Server that should lead.
        timeout: Seconds for the whole call.
    """
    deadline = Deadline(api.seconds_of(timeout))
    before = (await info(deadline.left)).cluster or ClusterInfo()
    names = [one.name for one in before.replicas]
    if not names:
        raise UsageError("a leader can step down only if there are other replicas, got a single one")
    if preferred is not None and preferred not in names:
        raise UsageError(f"preferred must be a replica that does not lead, one of {names}, got {preferred!r}")
    body = {"placement": {"preferred": preferred}} if preferred is not None else None
    await api.request(path, body, timeout=deadline.left)
    term, elections = (before.leader, before.leader_since), 0
    while not deadline.is_over:
        try:
            found = (await info(min(_ANSWER, deadline.left))).cluster or ClusterInfo()
            if found.leader and (found.leader, found.leader_since) != term:
                if preferred in (None, found.leader):
                    return found.leader
                elections += 1
                if elections == _ELECTIONS:
                    break
                # The preferred server lost the election, as it may on a busy machine.
                await api.request(path, body, timeout=min(_ANSWER, deadline.left))
                term = (found.leader, found.leader_since)
        except (StreamNotFoundError, ConsumerNotFoundError):  # deleted meanwhile
            raise
        except (CallTimeoutError, JetStreamError):  # during an election
            pass
        await asyncio.sleep(min(_PAUSE, deadline.left))
    outcome = "no other one was elected" if preferred is None else f"{preferred} was not elected"
    limit = f"within {deadline.timeout:g} s" if elections < _ELECTIONS else f"{elections} times"
    raise CallTimeoutError(f"the leader {before.leader} stepped down, and {outcome} {limit}")
