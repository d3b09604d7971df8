"""The streams that a Liftbridge cluster has of its own: ``__cursors`` and ``__activity``.

Both are ordinary streams here, so that metadata, subscriptions and all else know them. Cursors are kept in a
bucket: their stream is there because clients look in its metadata for whom to ask, and stays empty.
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
#: What they record. Nobody is to publish there.
_SUBJECTS: Final = {CURSORS: "_lift.cursors", ACTIVITY: "_lift.activity"}
#: As long as Liftbridge keeps messages where nothing else is said, in milliseconds: a week.
_MAX_AGE_MS: Final = 7 * 24 * 3600 * 1000
#: How often another gateway's work is looked at, in seconds.
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
    """Return a reserved stream, making it if no gateway has yet.

    Args:
        name: ``__cursors`` or ``__activity``.
        registry: The streams that there are.
        make: Makes a stream of a record.
        maker: Id of this gateway.
        replicas: How many servers keep it.
        timeout: How long another gateway may take to make it, in seconds.

    Raises:
        RpcError: It can't be made, or another gateway began to, and does not come to an end.
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
