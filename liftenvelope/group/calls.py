"""Calls to coordinators over NATS: to any coordinator, or to the controller of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from google.protobuf.message import DecodeError

from liftenvelope import _wire as w
from liftenvelope._backoff import Backoff
from liftenvelope._checks import as_seconds
from liftenvelope._deadlines import Deadline
from liftenvelope._pb import groups_pb2 as pb
from liftenvelope.errors import (
    CallTimeoutError,
    GroupError,
    NoJetStreamError,
    ServerProtocolError,
    TransportError,
)
from liftenvelope.group.errors import GroupUnavailableError, NotControllerError, UnknownGroupError
from liftenvelope.group.names import check_prefix
from liftenvelope.group.wire import raise_for
from liftenvelope.jetstream import Api

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from nats.aio.client import Client

__all__ = ["DEFAULT_PREFIX", "GroupCalls"]

DEFAULT_PREFIX: Final = w.GROUPS_PREFIX
#: Most seconds of one attempt, after which a controller that hangs or has died is given up.
_ONE_TRY: Final = 2.5
#: Seconds of the first attempt to find a controller; each further one takes twice as long.
_FIRST_TRY: Final = 0.25


class _Answer(Protocol):
    @property
    def error(self) -> pb.Error: ...


_A = TypeVar("_A", bound=_Answer)


class GroupCalls:
    """Sends calls to coordinators and retries them.

    Args:
        nc: A connected nats-py client.
        prefix: Prefix of the coordinators' subjects.
        timeout: Seconds for a call, including finding the controller.
    """

    def __init__(self, nc: Client, *, prefix: str = DEFAULT_PREFIX, timeout: float = 5.0) -> None:
        self._api = Api(nc, timeout=timeout)
        self.prefix = check_prefix(prefix)
        self.timeout = as_seconds("timeout", timeout)
        self._controllers: dict[str, str] = {}
        self._locating: dict[str, asyncio.Task[str]] = {}

    async def any(self, method: str, request: Message, kind: type[_A], timeout: float | None = None) -> _A:
        """Call any coordinator; retry while none can answer.

        Raises:
            GroupError: The coordinator refused the call.
            GroupUnavailableError: No coordinator can serve the call.
            CallTimeoutError: No answer came in time.
            TransportError: The connection is closed or draining.
        """
        return await self.patiently(lambda left: self._at_any(method, request, kind, left), timeout)

    async def controller(
        self,
        group: str,
        method: str,
        request: Message,
        kind: type[_A],
        timeout: float | None = None,
        *,
        slow: bool = False,
    ) -> _A:
        """Call the controller of a group; find it again after each failure.

        Args:
            group: Name of the group.
            method: Name of the call.
            request: Request message.
            kind: Class of the answer.
            timeout: Seconds for the call. Default: that of this object.
            slow: The controller may need all of the time. One attempt gets it, and is not repeated when it is
                over, because the controller may still be at work.

        Raises:
            GroupError, GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`any`.
        """
        return await self.patiently(
            lambda left: self.controller_once(group, method, request, kind, left), timeout, slow=slow
        )

    async def controller_once(
        self,
        group: str,
        method: str,
        request: Message,
        kind: type[_A],
        timeout: float,
        *,
        passing: bool = False,
    ) -> _A:
        """Call the controller of a group, without a retry. After a failure the next call finds it again.

        Args:
            group: Name of the group.
            method: Name of the call.
            request: Request message.
            kind: Class of the answer.
            timeout: Seconds for the call.
            passing: Return an answer with the code ``REBALANCING`` instead of raising it.

        Raises:
            GroupError, GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`any`.
        """
        deadline = Deadline(timeout)
        subject = self._controllers.get(group) or await self._located(group, timeout)
        try:
            return await self._ask(f"{subject}.{method}", request, kind, deadline.left, passing=passing)
        except (GroupUnavailableError, NotControllerError, UnknownGroupError, CallTimeoutError):
            self._controllers.pop(group, None)
            raise

    async def locate(self, group: str, timeout: float) -> None:
        """Find the controller of a group, unless it is known.

        Raises:
            UnknownGroupError: The group does not exist.
            GroupError, GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`any`.
        """
        if group not in self._controllers:
            await self._located(group, timeout)

    def forget(self, group: str) -> None:
        """Forget the controller of a group, so that the next call finds it again."""
        self._controllers.pop(group, None)

    async def _located(self, group: str, timeout: float) -> str:
        """Return the subject of a group's controller. Concurrent callers share one request."""
        task = self._locating.get(group)
        if task is None:
            task = self._locating[group] = asyncio.create_task(self._locate(group, timeout))
            task.add_done_callback(lambda done: self._found(group, done))
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(task)
        except TimeoutError as exc:
            raise CallTimeoutError(f"found no controller of group {group!r} within {timeout:g} s") from exc

    def _found(self, group: str, task: asyncio.Task[str]) -> None:
        self._locating.pop(group, None)
        if not task.cancelled() and task.exception() is None:
            self._controllers[group] = task.result()

    async def _locate(self, group: str, timeout: float) -> str:
        """Ask any coordinator. NATS may choose one that hangs, so the first attempts are short."""
        deadline, attempt = Deadline(timeout), _FIRST_TRY
        request = pb.ListGroupsRequest(names=[group])
        answer: pb.ListGroupsResponse | None = None
        while answer is None:
            left = deadline.left
            try:
                answer = await self._at_any("ListGroups", request, pb.ListGroupsResponse, min(attempt, left))
            except CallTimeoutError:
                if attempt >= left:
                    raise
                attempt *= 2
        if not answer.groups:
            raise UnknownGroupError(f"there is no group {group!r}: create it first")
        raise_for(answer.groups[0].error)
        return answer.groups[0].controller.subject

    async def _at_any(self, method: str, request: Message, kind: type[_A], timeout: float) -> _A:
        return await self._ask(f"{self.prefix}.any.{method}", request, kind, timeout)

    async def _ask(
        self, subject: str, request: Message, kind: type[_A], timeout: float, *, passing: bool = False
    ) -> _A:
        try:
            msg = await self._api.ask(subject, request.SerializeToString(), timeout=timeout)
        except NoJetStreamError:
            text = f"no coordinator answers on {subject!r}; start one"
            if self._api.nc.options.get("no_echo"):
                text += (
                    " on another connection: this one gets none of its own messages, because of no_echo=True"
                )
            raise GroupUnavailableError(text) from None
        answer = _read(kind, msg.data, subject)
        error = _error_of(answer)
        if not (passing and error.code == pb.REBALANCING):
            raise_for(error)
        return answer

    async def patiently(
        self, ask: Callable[[float], Awaitable[_A]], timeout: float | None = None, *, slow: bool = False
    ) -> _A:
        """Repeat an attempt while it fails with an error that may go away.

        Args:
            ask: Makes one attempt, within the seconds that it gets.
            timeout: Seconds for all attempts. Default: that of this object.
            slow: As for :meth:`controller`.

        Raises:
            GroupError, GroupUnavailableError, CallTimeoutError, TransportError: As for :meth:`any`.
        """
        seconds = self.timeout if timeout is None else as_seconds("timeout", timeout)
        deadline, backoff = Deadline(seconds), Backoff(first=0.02, longest=0.5)
        refusal: GroupError | None = None
        while True:
            left, pause = deadline.left, backoff.next()
            try:
                return await ask(left if slow else min(left, _ONE_TRY))
            except (GroupUnavailableError, NotControllerError) as exc:
                refusal = exc
                if pause >= deadline.left:
                    raise
            except CallTimeoutError as exc:
                if slow:
                    raise
                if pause >= deadline.left:
                    # The refusal of an earlier attempt says more than the timeout of the last one.
                    raise refusal or exc from exc
            await asyncio.sleep(pause)


def _read(kind: type[_A], data: bytes, subject: str) -> _A:
    try:
        answer: _A = kind.FromString(data)  # type: ignore[attr-defined]
    except DecodeError as exc:
        text = f"the answer on {subject!r} is not a {kind.__name__}: {data[:100]!r}"
        raise ServerProtocolError(text) from exc
    return answer


def _error_of(answer: _Answer) -> pb.Error:
    """Return the error of an answer. DeleteGroup, which is asked for one group, has it with the group."""
    if isinstance(answer, pb.DeleteGroupResponse) and answer.results:
        return answer.results[0].error
    return answer.error


#: Errors of a call that may go away on a retry.
PASSING: Final = (GroupUnavailableError, NotControllerError, CallTimeoutError, TransportError)
