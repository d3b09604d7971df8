"""Asks all NATS servers about themselves, for ``liftenvelope doctor``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftenvelope.nats.link import max_payload_of

# After liftenvelope.nats, which imports it without aiohttp.
# isort: split
import nats.errors

from liftenvelope.cli._checks.connection import skipped
from liftenvelope.cli._checks.findings import Finding
from liftenvelope.cli._checks.server import (
    ServerAnswer,
    payload_finding,
    server_clock_findings,
    server_name,
    variable_findings,
    version_finding,
)
from liftenvelope.errors import PermissionDeniedError

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

__all__ = ["Servers", "permitted"]

_Answer = TypeVar("_Answer")
#: Seconds between looks for a refusal, which the server sends apart from answers.
_LOOK: Final = 0.05
#: Requests that go to all servers: one that every user may send, and one for the system account.
_EACH: Final = "$SYS.REQ.ACCOUNT.PING.STATZ"
_VARIABLES: Final = "$SYS.REQ.SERVER.PING.VARZ"
#: Seconds without a further answer after which there is none, and answers to keep.
_QUIET: Final = 0.3
_MOST: Final = 1_000
_NO_RESPONDERS: Final = "503"


async def permitted(nc: NatsClient, subject: str, call: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Await a request, and raise at once if the server tells that the user may not send it.

    Raises:
        PermissionDeniedError: The user may not publish on the subject.
    """
    task = asyncio.ensure_future(call)
    wanted = f'permissions violation for publish to "{subject.lower()}"'
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK)
            if not task.done() and wanted in (reason := str(nc.last_error).lower()):
                raise PermissionDeniedError(0, reason)
        return task.result()
    finally:
        task.cancel()


class Servers:
    """Checks of all servers that can be reached.

    Args:
        nc: The connection.
        timeout: Seconds to wait for the first answer to a request.

    Attributes:
        told: Requests to which the servers have answered.
    """

    def __init__(self, nc: NatsClient, timeout: float) -> None:
        self._nc = nc
        self._timeout = timeout
        self.told: set[str] = set()

    @property
    def is_system(self) -> bool:
        """True for a user of the system account, whom the servers tell their variables."""
        return _VARIABLES in self.told

    @property
    def has_times(self) -> bool:
        """True if the servers have told their times."""
        return _EACH in self.told

    async def check(self) -> list[Finding]:
        """Return the findings. A request that the user may not send is a skipped check."""
        findings = [payload_finding(max_payload_of(self._nc))]
        title = "versions and clocks of the servers"
        findings += await self._checked(_EACH, title, "", _each)
        remedy = "run doctor with a user of the system account"
        findings += await self._checked(_VARIABLES, "limits of the servers", remedy, variable_findings)
        return findings

    async def _checked(
        self,
        subject: str,
        title: str,
        remedy: str,
        check: Callable[[Sequence[ServerAnswer]], Iterable[Finding]],
    ) -> list[Finding]:
        try:
            answers = await permitted(self._nc, subject, self._ask(subject))
            if not answers:
                return [skipped(title, "this user may not ask the servers", remedy)]
            findings = list(check(answers))
            self.told.add(subject)
            return findings
        except PermissionDeniedError as exc:
            return [skipped(title, str(exc), remedy)]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as exc:
            return [skipped(title, f"the answer of a server can't be read: {exc!r}")]

    async def _ask(self, subject: str) -> list[ServerAnswer]:
        """Return the answers of all servers, by their names; empty if none answers."""
        subscription = await self._nc.subscribe(self._nc.new_inbox())
        try:
            sent = time.time_ns()
            await self._nc.publish(subject, b"", reply=subscription.subject)
            found = await self._answers(subscription, sent)
        finally:
            await subscription.unsubscribe()
        return sorted(found, key=server_name)

    async def _answers(self, subscription: Subscription, sent: int) -> list[ServerAnswer]:
        found: list[ServerAnswer] = []
        while len(found) < _MOST:
            try:
                message = await subscription.next_msg(timeout=_QUIET if found else self._timeout)
            except nats.errors.TimeoutError:
                break
            if (message.headers or {}).get("Status") == _NO_RESPONDERS:
                break
            found.append(ServerAnswer(body=_body(message), sent_ns=sent, received_ns=time.time_ns()))
        return found


def _body(message: Msg) -> Mapping[str, Any]:
    body = json.loads(message.data)
    if not isinstance(body, dict):
        raise TypeError(f"expected an object, got {type(body).__name__}")
    return body


def _each(answers: Sequence[ServerAnswer]) -> list[Finding]:
    return [version_finding(answers), *server_clock_findings(answers)]
