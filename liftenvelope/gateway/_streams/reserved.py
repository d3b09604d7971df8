"""Creates the reserved streams of a Liftbridge cluster: ``__cursors`` and ``__activity``.

Both are ordinary streams here, so that metadata and subscriptions work for them as well. Cursors are stored
in a bucket. The stream ``__cursors`` stays empty and exists only because clients look up the leader for
cursors in its metadata.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Final

from liftenvelope._deadlines import Deadline
from liftenvelope.gateway._cluster.records import StreamPhase, StreamRecord
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway._cluster.registry import StreamRegistry
    from liftenvelope.gateway._streams.service import StreamService

__all__ = ["ACTIVITY", "CURSORS", "ensure_stream", "reserved_record"]

CURSORS: Final = "__cursors"
ACTIVITY: Final = "__activity"
#: Subjects of the reserved streams. Clients must not publish there.
_SUBJECTS: Final = {CURSORS: "_lift.cursors", ACTIVITY: "_lift.activity"}
#: Retention of the reserved streams, in milliseconds: a week, the default of Liftbridge.
_MAX_AGE_MS: Final = 7 * 24 * 3600 * 1000
#: Times that an unfinished stream is removed after the timeout.
_TRIES: Final = 3
#: Statuses of a creation that lost to another gateway, which creates the stream or removes it just now.
_TAKEN: Final = (StatusCode.ALREADY_EXISTS, StatusCode.NOT_FOUND, StatusCode.ABORTED)
#: Interval of polls while another gateway creates the stream, in seconds.
_LOOK: Final = 0.05


async def ensure_stream(
    name: str,
    registry: StreamRegistry,
    streams: StreamService,
    *,
    maker: str,
    replicas: int = 1,
    timeout: float = 10.0,
) -> StreamRecord:
    """Return a reserved stream; create it if no gateway has done so.

    A gateway that dies while it creates the stream leaves an unfinished record. Such a record of an earlier
    run of this gateway is removed at once. Another gateway gets ``timeout`` seconds to finish, because it may
    be alive: gateways join the live ones at the end of their start.

    Args:
        name: ``__cursors`` or ``__activity``.
        registry: The existing streams.
        streams: Creates and removes streams.
        maker: Id of this gateway.
        replicas: Number of servers that store the stream. Default 1.
        timeout: Seconds to wait for another gateway that is creating the stream. Default 10.

    Raises:
        RpcError: The stream can't be created. ABORTED: other gateways create and remove it again and again.
    """
    for _ in range(_TRIES):
        deadline = Deadline(timeout)
        while not deadline.is_over:
            try:
                return await registry.find(name)
            except RpcError as missing:
                try:
                    # If the records were lost, the stream is taken over with its messages. No client can
                    # create a stream of that name.
                    return await streams.make(await streams.adopted(reserved_record(name, maker, replicas)))
                except RpcError as exc:
                    if exc.code not in _TAKEN:
                        raise exc from missing
            left = _unfinished(name, registry)
            if left is not None and left.maker == maker:
                await streams.unfinished.remove(left)
            else:
                await asyncio.sleep(_LOOK)
        if (left := _unfinished(name, registry)) is not None:
            await streams.unfinished.remove(left)
    raise RpcError(StatusCode.ABORTED, f"no gateway has finished creating {name}: start the gateway again")


def _unfinished(name: str, registry: StreamRegistry) -> StreamRecord | None:
    """Return the record of a stream that is being created or removed; None if there is none."""
    return next((record for record in registry.unfinished() if record.name == name), None)


def reserved_record(name: str, maker: str, replicas: int) -> StreamRecord:
    """Return the record of a new reserved stream, in state CREATING."""
    return StreamRecord(
        name=name,
        subject=_SUBJECTS[name],
        id=secrets.token_hex(8),
        maker=maker,
        state=StreamPhase.CREATING,
        created_ns=time.time_ns(),
        replicas=replicas,
        settings={"retentionMaxAge": _MAX_AGE_MS},
    )
