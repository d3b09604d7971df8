"""Probe streams: created and deleted at once, to learn how many replicas the cluster accepts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import JetStreamError, LiftEnvelopeError, StreamNotFoundError
from liftenvelope.gateway._protocol.names import encode_name
from liftenvelope.jetstream.stream_config import StreamConfig

if TYPE_CHECKING:
    from liftenvelope.jetstream.context import JetStream
    from liftenvelope.jetstream.infos import StreamInfo

__all__ = ["most_replicas", "remove_old_probes"]

#: Prefixes of the names and of the subjects of probe streams.
_NAME: Final = "lift_probe_"
_SUBJECT: Final = "_lift.probe."
#: Age in seconds from which a probe stream counts as left behind: the requests of a live probe end sooner.
_AGE: Final = 60.0
_MOST_REPLICAS: Final = 5
#: JetStream errors for more replicas than servers: in a cluster, and on a server by itself.
_TOO_MANY_REPLICAS: Final = (10005, 10074)


async def most_replicas(js: JetStream) -> int:
    """Return the highest replica count that the cluster accepts: its servers, but at most five."""
    name = f"{_NAME}{encode_name(js.api.nc.new_inbox()[-12:])}"
    for replicas in range(_MOST_REPLICAS, 1, -1):
        if await _accepts(js, StreamConfig(name=name, subjects=(_SUBJECT + name,), num_replicas=replicas)):
            return replicas
    return 1


async def remove_old_probes(js: JetStream) -> None:
    """Delete the probe streams that killed gateways and requests of unknown outcome have left behind."""
    # The server lists every stream whose subjects overlap the filter, such as a user's `*.probe.*`.
    old = [info.config.name async for info in js.streams(_SUBJECT + "*") if _is_old(info)]
    for name in old:
        with suppress(StreamNotFoundError):  # another gateway was faster
            await js.delete_stream(name)


async def _accepts(js: JetStream, config: StreamConfig) -> bool:
    """Return whether JetStream creates a stream, and delete it again, also when cancelled."""
    creating = asyncio.create_task(_create(js, config), name="create probe stream")
    try:
        is_created = await asyncio.shield(creating)
    except asyncio.CancelledError:
        # A delete request that overtakes the creation would find no stream.
        await asyncio.wait([creating])
        with suppress(LiftEnvelopeError):
            await js.delete_stream(config.name)
        raise
    if is_created:
        await js.delete_stream(config.name)
    return is_created


async def _create(js: JetStream, config: StreamConfig) -> bool:
    """Create a stream; return False if the cluster has too few servers for its replicas."""
    try:
        await js.create_stream(config)
    except JetStreamError as exc:
        if exc.err_code not in _TOO_MANY_REPLICAS:
            raise
        return False
    return True


def _is_old(info: StreamInfo) -> bool:
    name = info.config.name
    if not name.startswith(_NAME) or tuple(info.config.subjects) != (_SUBJECT + name,):
        return False
    if info.created is None or info.ts is None:
        return False
    return (info.ts - info.created).total_seconds() >= _AGE
