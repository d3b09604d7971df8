"""Authorization: a policy file lists each client's permissions. Clients are named by their certificates.

The file has the format of Liftbridge's authorisation (casbin's CSV). A line ``p`` allows a client, or a role,
to call one method on one stream. A line ``g`` gives a client a role. A resource that ends with ``*`` stands
for all that begin so, as by casbin's ``keyMatch``; the resource of FetchMetadata is ``*`` itself. ::

    p, client1, *, FetchMetadata
    p, client1, orders*, Subscribe
    p, makers, orders-eu, CreateStream
    p, makers, orders.*.eu, RecordSubject
    g, client1, makers

CreateStream needs two permissions: ``CreateStream`` on the name and ``RecordSubject`` on the NATS subject.
The second one exists because readers of a stream see everything published on its subject. RecordSubject is
the only method whose resource may have NATS wildcards. It allows every subject that the resource covers, and
the subjects of the stream's partitions (``orders.1`` with ``orders``). A stream whose subject equals its name
needs no RecordSubject. Liftbridge ignores such lines.

When the file changes, subscriptions that are no longer allowed end with PERMISSION_DENIED. So do PublishAsync
calls of clients that may no longer publish to any stream.

Differences from Liftbridge: A denial has the status PERMISSION_DENIED. A denied call has no effect. A message
that is denied on PublishAsync is not published. SetCursor needs no permission to publish to ``__cursors``.
Joining a consumer group needs the Subscribe permission on each of its streams.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import about
from liftenvelope._pb import api_pb2
from liftenvelope.consumers.tasks import background, cancel
from liftenvelope.errors import UsageError
from liftenvelope.gateway._clients.policy import RECORD_SUBJECT, Policy
from liftenvelope.gateway._protocol.failures import refused_publish
from liftenvelope.gateway._protocol.requests import read_request
from liftenvelope.gateway.limits import Limits
from liftenvelope.rpc.status import RpcError, StatusCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from liftenvelope.rpc.server import Handler, ServerCall

__all__ = ["Authorization", "client_name"]

_log: Final = logging.getLogger("liftenvelope.gateway")
_API: Final = "/proto.API/"
#: Methods whose open calls a new policy may end. Calls of the others are short.
_LASTING: Final = ("PublishAsync", "Subscribe")
#: Seconds between two checks of the file.
_LOOK: Final = 1.0

#: Unary and Subscribe methods: request type, its resources, and the method that must be allowed; empty for
#: the method itself.
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


class _OpenCall:
    """An open call, to be ended when the policy no longer allows it.

    Args:
        check: Raises RpcError if the policy does not allow the call.
        scope: Cancels the call.
    """

    def __init__(self, check: Callable[[], None], scope: asyncio.Timeout) -> None:
        self._check = check
        self._scope = scope
        #: Status of the call after the policy ended it; None before.
        self.denial: RpcError | None = None

    def end_if_denied(self) -> None:
        """End the call if the policy does not allow it."""
        try:
            self._check()
        except RpcError as denial:
            if self.denial is None:
                self.denial = denial
                self._scope.reschedule(0.0)


class Authorization:
    """Enforces a policy file, and reloads the file when it changes.

    Args:
        path: Path of the file.

    Attributes:
        path: Path of the file.

    Raises:
        UsageError: The file can't be read or parsed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._seen = self._state()
        self._policy = self._read()
        self._task: asyncio.Task[None] | None = None
        self._limits = Limits()
        self._open: set[_OpenCall] = set()

    async def start(self) -> None:
        """Start to watch the file for changes."""
        self._task = background(self._follow(), name="policy file", log=_log)

    async def close(self) -> None:
        """Stop watching the file."""
        task, self._task = self._task, None
        if task is not None:
            await cancel([task])

    def check(self, client: str, resource: str, method: str) -> None:
        """Check that a client may call a method on a resource.

        Raises:
            RpcError: PERMISSION_DENIED: the client may not, or its certificate has no name.
        """
        if not client:
            text = f"{method} needs a client certificate with a common name: none was presented"
            raise RpcError(StatusCode.PERMISSION_DENIED, text)
        if not self._policy.allows(client, resource, method):
            text = f"The client is not authorized to call {method} on resource {resource}"
            raise RpcError(StatusCode.PERMISSION_DENIED, text)

    def check_subject(self, client: str, name: str, subject: str) -> None:
        """Check that a client may create a stream on a subject.

        Raises:
            RpcError: PERMISSION_DENIED: the client may not.
        """
        if subject != name and not self._policy.may_record(client, subject):
            text = f"The client is not authorized to create streams on subject {subject}"
            needed = f"p, {client}, {subject}, {RECORD_SUBJECT}"
            raise RpcError(StatusCode.PERMISSION_DENIED, f"{text}: add '{needed}' to the policy")

    def check_any(self, client: str, method: str) -> None:
        """Check that a client may call a method on at least one resource.

        Raises:
            RpcError: PERMISSION_DENIED: the client may not.
        """
        if not self._policy.allows_any(client, method):
            text = f"The client is not authorized to call {method} on any resource"
            raise RpcError(StatusCode.PERMISSION_DENIED, text)

    def protect(self, handlers: Mapping[str, Handler], limits: Limits) -> dict[str, Handler]:
        """Wrap handlers so that they serve only allowed calls. Methods outside the API stay open to all.

        Args:
            handlers: Handlers by path.
            limits: Bounds of the names in requests.
        """
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
            check: Callable[[], None] | None = None
            if method == "PublishAsync":
                call.admits = partial(self._admits, call, client)
                check = partial(self.check_any, client, "Publish")
            elif method in _ABOUT:
                check = await self._request_check(call, client, method)
                check()
            if method not in _LASTING:
                check = None  # holds the parsed request, which may be large
            if check is None:
                await handler(call)
                return
            async with self._while_allowed(check):
                await handler(call)

        return serve

    async def _request_check(self, call: ServerCall, client: str, method: str) -> Callable[[], None]:
        """Read the request; return a function that raises RpcError if the policy does not allow it."""
        kind, resources, needed = _ABOUT[method]
        if (received := await call.receive()) is None:
            return lambda: None  # the method itself refuses a call without a request
        for raw in reversed(received):
            call.put_back(raw)
        request = read_request(kind, received[0], self._limits)

        def check() -> None:
            for resource in resources(request):
                self.check(client, resource, needed or method)
            if method == "CreateStream":
                self.check_subject(client, request.name, request.subject)

        return check

    @asynccontextmanager
    async def _while_allowed(self, check: Callable[[], None]) -> AsyncIterator[None]:
        """Cancel the block and raise the error of ``check`` when a new policy makes ``check`` fail."""
        opened = None
        try:
            async with asyncio.timeout(None) as scope:
                opened = _OpenCall(check, scope)
                self._open.add(opened)
                yield
        except TimeoutError:
            if opened is None or opened.denial is None:
                raise
            raise opened.denial from None
        finally:
            if opened is not None:
                self._open.discard(opened)

    def _admits(self, call: ServerCall, client: str, raw: bytes) -> bool:
        """Return True if a message of PublishAsync may be published; else answer the client with an error."""
        request = read_request(api_pb2.PublishRequest, raw, self._limits)
        try:
            self.check(client, request.stream, "Publish")
        except RpcError as denied:
            code = api_pb2.PublishAsyncError.PERMISSION_DENIED
            answer = refused_publish(code, denied.description, request.correlationId, self._limits)
            call.send_nowait([answer])
            return False
        return True

    # The file

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            if self._state() != self._seen:
                self.reload()

    def reload(self) -> None:
        """Read the file. If it can't be read or parsed, log an error and keep the previous policy."""
        self._seen = self._state()
        try:
            self._policy = self._read()
        except UsageError as exc:
            _log.error("keeping the previous policy: %s", exc)
            return
        _log.info("policy file %s: %d permissions", self.path, len(self._policy))
        for opened in list(self._open):
            opened.end_if_denied()

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Policy:
        try:
            with open(self.path, encoding="utf-8") as file:
                return Policy(file.read())
        except (OSError, UnicodeDecodeError) as exc:
            text = f"policy_file must be a file that can be read, got {self.path!r}: {exc}"
            raise about(UsageError(text), "policy_file") from exc
        except UsageError as exc:
            raise about(UsageError(f"policy_file {self.path!r}: {exc}"), "policy_file") from exc


def client_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the common name in a certificate from ``ssl``; empty for no certificate or no name.

    Example:
        >>> client_name({"subject": ((("countryName", "CH"),), (("commonName", "client1"),))})
        'client1'
    """
    name = ""
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                name = value  # the last one counts, as in Go
    return name
