"""Creates the reserved streams of a Liftbridge cluster: ``__cursors`` and ``__activity``.

Both are ordinary streams here, so that metadata and subscriptions work for them as well. Cursors are stored
in a bucket. The stream ``__cursors`` stays empty and exists only because clients look up the leader for
cursors in its metadata.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from liftenvelope.gateway.records import StreamRecord, StreamState
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.gateway.registry import StreamRegistry

__all__ = ["ACTIVITY", "CURSORS", "ensure_stream"]

CURSORS: Final = "__cursors"
ACTIVITY: Final = "__activity"
#: Subjects of the reserved streams. Clients must not publish there.
_SUBJECTS: Final = {CURSORS: "_lift.cursors", ACTIVITY: "_lift.activity"}
#: Retention of the reserved streams, in milliseconds: a week, the default of Liftbridge.
_MAX_AGE_MS: Final = 7 * 24 * 3600 * 1000
#: Interval of polls while another gateway creates the stream, in seconds.
_LOOK: Final = 0.05


async def ensure_stream(
    name: str,
    registry: StreamRegistry,
    make: Callable[[StreamRecord], Awaitable[StreamRecord]],
    *,
    maker: str,
    replicas: int = 1,
    timeout: float = 10.0,
) -> StreamRecord:
    """Return a reserved stream; create it if no gateway has done so.

    Args:
        name: ``__cursors`` or ``__activity``.
        registry: The existing streams.
        make: Creates a stream from a record.
        maker: Id of this gateway.
        replicas: Number of servers that store the stream. Default 1.
        timeout: Seconds to wait for another gateway that is creating the stream. Default 10.

    Raises:
        RpcError: The stream can't be created, or another gateway does not finish creating it in time.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        try:
            return await registry.find(name)
        except RpcError as missing:
            try:
                return await make(_record(name, maker, replicas))
            except RpcError as exc:
                late = asyncio.get_running_loop().time() > deadline
                if exc.code != StatusCode.ALREADY_EXISTS or late:
                    raise exc from missing
        await asyncio.sleep(_LOOK)


def _record(name: str, maker: str, replicas: int) -> StreamRecord:
    return StreamRecord(
        name=name,
        subject=_SUBJECTS[name],
        id=secrets.token_hex(8),
        maker=maker,
        state=StreamState.CREATING,
        created_ns=time.time_ns(),
        replicas=replicas,
        settings={"retentionMaxAge": _MAX_AGE_MS},
    )
