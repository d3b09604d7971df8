"""Maps the gRPC methods of ``proto.API`` and the health service to their handlers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from google.protobuf.message import DecodeError

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway._calls.metadata import MetadataService
from liftenvelope.gateway._clients.authorization import client_name
from liftenvelope.gateway._protocol.failures import status_of_call
from liftenvelope.gateway._publishing.service import PublishService
from liftenvelope.gateway._readers.subscribing import SubscribeService
from liftenvelope.rpc.server import unary
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from liftenvelope.gateway._calls.health import HealthService
    from liftenvelope.gateway._core import Core
    from liftenvelope.gateway._readers.cursors import CursorService
    from liftenvelope.gateway._readers.groups import GroupFace
    from liftenvelope.gateway._readers.reads import OpenReads
    from liftenvelope.gateway._streams.service import StreamService
    from liftenvelope.rpc.server import Handler, ServerCall

    _Answer: TypeAlias = Callable[[ServerCall, bytes], Awaitable[bytes]]

__all__ = ["ENDLESS", "handlers"]

_API: Final = "/proto.API/"
_HEALTH: Final = "/grpc.health.v1.Health/"
#: Methods whose calls end only when the client ends them. Draining does not wait for these calls.
ENDLESS: Final = (_API + "Subscribe", _HEALTH + "Watch")


def handlers(
    core: Core,
    streams: StreamService,
    reads: OpenReads,
    cursors: CursorService,
    groups: GroupFace,
    health: HealthService,
) -> dict[str, Handler]:
    """Return the handler of each method, by path. The server answers other paths with UNIMPLEMENTED.

    Args:
        core: The gateway's parts.
        streams: Serves the methods that change streams.
        reads: The open subscriptions.
        cursors: Serves the cursor methods.
        groups: Serves the consumer group methods.
        health: Serves the health service.
    """

    async def set_cursor(call: ServerCall, raw: bytes) -> bytes:
        async with core.places.taken(call.connection):
            return await cursors.set(raw, client_name(call.peer_certificate))

    counted = partial(_counted, core)
    publishing, metadata = PublishService(core, streams), MetadataService(core, groups)
    subscribing = SubscribeService(core, streams, reads, groups)
    return {
        _API + "CreateStream": guarded(counted(streams.create)),
        _API + "DeleteStream": guarded(counted(_without_call(streams.whole(streams.delete)))),
        _API + "PauseStream": guarded(counted(_without_call(streams.whole(streams.pause)))),
        _API + "SetStreamReadonly": guarded(counted(_without_call(streams.whole(streams.set_readonly)))),
        _API + "FetchMetadata": guarded(metadata.fetch),
        _API + "FetchPartitionMetadata": guarded(counted(_without_call(metadata.fetch_partition))),
        _API + "Publish": guarded(publishing.publish),
        _API + "PublishAsync": guarded(publishing.publish_async),
        _API + "PublishToSubject": guarded(publishing.publish_to_subject),
        _API + "Subscribe": guarded(core.quotas.limited(subscribing.subscribe)),
        _API + "SetCursor": guarded(counted(set_cursor)),
        _API + "FetchCursor": guarded(counted(_without_call(cursors.fetch))),
        _API + "JoinConsumerGroup": guarded(counted(groups.join)),
        _API + "LeaveConsumerGroup": guarded(counted(groups.leave)),
        _API + "FetchConsumerGroupAssignments": guarded(counted(groups.assignments)),
        _API + "ReportConsumerGroupCoordinator": guarded(counted(groups.report)),
        _HEALTH + "Check": guarded(unary(health.check)),
        _HEALTH + "Watch": guarded(health.watch),
    }


def _without_call(answer: Callable[[bytes], Awaitable[bytes]]) -> _Answer:
    """Return an answer to a call and its request, for an implementation that needs the request alone."""

    async def serve(call: ServerCall, raw: bytes) -> bytes:  # noqa: ARG001
        return await answer(raw)

    return serve


def _counted(core: Core, answer: _Answer) -> Handler:
    """Return the handler of a unary method. Its requests count as pending bytes until they are answered."""

    async def serve(call: ServerCall) -> None:
        raw = await call.one_request()
        with core.quotas.hold(call, len(raw)):
            await call.send([await answer(call, raw)])

    return serve


def guarded(handler: Handler) -> Handler:
    """Return a handler that turns errors of NATS, of JetStream and of malformed requests into statuses."""

    async def serve(call: ServerCall) -> None:
        try:
            await handler(call)
        except DecodeError as exc:
            raise RpcError(StatusCode.INTERNAL, f"the request can't be read: {exc}") from exc
        except LiftEnvelopeError as exc:
            raise status_of_call(exc) from exc

    return serve
