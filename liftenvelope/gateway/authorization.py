"""Who may do what: a policy file, and clients known by the common name of their certificates.

The file is that of Liftbridge's default model (casbin's CSV): a line for each thing that is allowed, with the
client, the stream and the method. All three are compared letter by letter; ``*`` is nothing but the name of
what FetchMetadata is asked about. ::

    p, client1, *, FetchMetadata
    p, client1, orders, Subscribe

Unlike there, a denial is PERMISSION_DENIED, nothing is done before it, a message that is denied on
PublishAsync is not published, and SetCursor needs no permission to publish to ``__cursors``. Joining a
consumer group takes the permission to subscribe to each of its streams.
"""

from __future__ import annotations

import asyncio
import csv
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._pb import api_pb2
from liftenvelope.errors import UsageError
from liftenvelope.gateway.limits import Limits
from liftenvelope.gateway.requests import read_request
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from liftenvelope.rpc.server import Handler, ServerCall

__all__ = ["Authorization", "Policy", "client_name"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_API: Final = "/proto.API/"
_FIELDS: Final = 4
#: How often the file is looked at, in seconds.
_LOOK: Final = 1.0

#: Of each method with one request: what it is about, and what must be allowed, if not the method itself.
_ABOUT: Final[Mapping[str, tuple[Any, Callable[[Any], Iterable[str]], str]]] = {
    "CreateStream": (api_pb2.CreateStreamRequest, lambda r: [r.name], ""),
    "DeleteStream": (api_pb2.DeleteStreamRequest, lambda r: [r.name], ""),
    "PauseStream": (api_pb2.PauseStreamRequest, lambda r: [r.name], ""),
    "SetStreamReadonly": (api_pb2.SetStreamReadonlyRequest, lambda r: [r.name], ""),
    "Subscribe": (api_pb2.SubscribeRequest, lambda r: [r.stream], ""),
    "FetchMetadata": (api_pb2.FetchMetadataRequest, lambda _: ["*"], ""),
    "FetchPartitionMetadata": (api_pb2.FetchPartitionMetadataRequest, lambda r: [r.stream], ""),
    "Publish": (api_pb2.PublishRequest, lambda r: [r.stream], ""),
    "PublishToSubject": (api_pb2.PublishToSubjectRequest, lambda r: [r.subject], ""),
    "SetCursor": (api_pb2.SetCursorRequest, lambda r: [r.stream], ""),
    "FetchCursor": (api_pb2.FetchCursorRequest, lambda r: [r.stream], ""),
    "JoinConsumerGroup": (api_pb2.JoinConsumerGroupRequest, lambda r: r.streams, "Subscribe"),
}


class Policy:
    """What is allowed.

    Args:
        text: The file.

    Raises:
        UsageError: A line says nothing that is understood; the message has its number.

    Example:
        >>> policy = Policy("p, client1, orders, Subscribe")
        >>> policy.allows("client1", "orders", "Subscribe"), policy.allows("client1", "orders", "Publish")
        (True, False)
    """

    def __init__(self, text: str = "") -> None:
        self._allowed: set[tuple[str, str, str]] = set()
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            fields = [field.strip() for field in next(csv.reader([line], skipinitialspace=True))]
            if len(fields) != _FIELDS or fields[0] != "p" or not all(fields):
                raise UsageError(f"line {number}: {line!r}: expected 'p, client, stream, method'")
            self._allowed.add((fields[1], fields[2], fields[3]))

    def allows(self, client: str, resource: str, method: str) -> bool:
        """Whether a client may do something to a stream."""
        return (client, resource, method) in self._allowed

    def __len__(self) -> int:
        return len(self._allowed)


class Authorization:
    """Enforces a policy file, which is read again whenever it has changed.

    Args:
        path: The file.

    Raises:
        UsageError: It can't be read, or understood.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._seen = self._state()
        self._policy = self._read()
        self._task: asyncio.Task[None] | None = None
        self._limits = Limits()

    async def start(self) -> None:
        """Follow the file."""
        self._task = asyncio.create_task(self._follow(), name="policy file")

    async def close(self) -> None:
        """Follow it no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def check(self, client: str, resource: str, method: str) -> None:
        """Make sure that a client may do something to a stream.

        Raises:
            RpcError: PERMISSION_DENIED: it may not, or has no name.
        """
        if not client:
            text = f"the client has shown no certificate with a name, so it may not call {method}"
            raise RpcError(StatusCode.PERMISSION_DENIED, text)
        if not self._policy.allows(client, resource, method):
            text = f"The client is not authorized to call {method} on resource {resource}"
            raise RpcError(StatusCode.PERMISSION_DENIED, text)

    def protect(self, handlers: Mapping[str, Handler], limits: Limits) -> dict[str, Handler]:
        """Return handlers that serve only what is allowed. What is not of the API is for everybody."""
        self._limits = limits
        return {path: self._protected(path, handler) for path, handler in handlers.items()}

    def _protected(self, path: str, handler: Handler) -> Handler:
        if not path.startswith(_API):
            return handler
        method = path.removeprefix(_API)

        async def serve(call: ServerCall) -> None:
            client = client_name(call.peer_certificate)
            if not client:
                self.check(client, "", method)
            if method == "PublishAsync":
                call.admits = partial(self._admits, call, client)
            elif method in _ABOUT:
                await self._check_request(call, client, method)
            await handler(call)

        return serve

    async def _check_request(self, call: ServerCall, client: str, method: str) -> None:
        kind, resources, needed = _ABOUT[method]
        async for raw in call:
            for resource in resources(read_request(kind, raw, self._limits)):
                self.check(client, resource, needed or method)
            call.put_back(raw)
            return

    def _admits(self, call: ServerCall, client: str, raw: bytes) -> bool:
        """Say whether a message of PublishAsync may be published; the client is told if not."""
        request = read_request(api_pb2.PublishRequest, raw, self._limits)
        try:
            self.check(client, request.stream, "Publish")
        except RpcError as denied:
            response = api_pb2.PublishResponse(ack=api_pb2.Ack(), correlationId=request.correlationId)
            response.asyncError.code = api_pb2.PublishAsyncError.PERMISSION_DENIED
            response.asyncError.message = denied.description
            call.send_nowait([response.SerializeToString()])
            return False
        return True

    # The file

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            state = self._state()
            if state == self._seen:
                continue
            self._seen = state
            try:
                self._policy = self._read()
            except UsageError as exc:
                _log.warning("the policy stays as it was: %s", exc)
            else:
                _log.info("policy file %s: %d permissions", self._path, len(self._policy))

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Policy:
        try:
            with open(self._path, encoding="utf-8") as file:
                return Policy(file.read())
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"the policy file {self._path!r} can't be read: {exc}") from exc
        except UsageError as exc:
            raise UsageError(f"the policy file {self._path!r}, {exc}") from exc


def client_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the common name of a certificate as ``ssl`` gives it, empty if there is none.

    Example:
        >>> client_name({"subject": ((("countryName", "CH"),), (("commonName", "client1"),))})
        'client1'
    """
    name = ""
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                name = value  # the last one, as Go has it
    return name
