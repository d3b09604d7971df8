"""Unary publishes: one call per message, for the ack policy NONE, for own ack inboxes, and for subjects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from liftenvelope._deadlines import MAY_BE_STORED, NOT_STORED
from liftenvelope._wire import RecentIds
from liftenvelope.client.failures import STREAM_ACK_CAUSES, SUBJECT_ACK_CAUSES, publish_call_error
from liftenvelope.client.publish_codec import ack_in
from liftenvelope.errors import (
    AckTimeoutError,
    EnvelopeError,
    LiftEnvelopeError,
    ServerProtocolError,
    TransportError,
    UsageError,
)
from liftenvelope.rpc.status import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftenvelope._deadlines import Deadline
    from liftenvelope.client._brokers.cluster import Cluster
    from liftenvelope.envelope import Ack

__all__ = ["UnaryPublish", "UnaryPublisher"]

#: Messages without an ack to remember per client.
_GIVEN_UP: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaryPublish:
    """One message to publish by a unary call.

    Attributes:
        method: Method of the API.
        data: Encoded request.
        about: Partition or subject; begins the error text.
        correlation_id: Correlation id in the request.
        ack_inbox: Ack inbox in the request; empty for none.
        has_ack: False for the ack policy NONE.
    """

    method: Literal["Publish", "PublishToSubject"]
    data: bytes
    about: str
    correlation_id: str
    ack_inbox: str
    has_ack: bool


@dataclass(slots=True)
class _InboxUse:
    """Lock of one ack inbox, and the number of calls that hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: int = 0


class UnaryPublisher:
    """Makes unary publishes. Those with the same ack inbox run one after the other.

    Liftbridge 1.9.0 subscribes to the ack inbox of a unary publish and answers with the first ack that
    arrives there, without comparing correlation ids (``server/api.go``, ``publishSync``). Two publishes that
    wait on one inbox would both get the ack of the first. A late ack, or one for another program, can still
    come first, so the correlation id is compared.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: By ack inbox. An entry exists only while calls use it.
        self._uses: dict[str, _InboxUse] = {}
        #: Ack inboxes and correlation ids of messages that were sent and got no ack.
        self._given_up = RecentIds(_GIVEN_UP)

    async def publish(self, message: UnaryPublish, deadline: Deadline) -> Ack | None:
        """Publish a message; return its ack, None if it has none.

        Raises:
            AckTimeoutError: No ack came in time, or the ack of another message came first.
            ServerProtocolError: The answer could not be read.
            UsageError: An earlier message on the ack inbox had the same correlation id and got no ack.
            LiftEnvelopeError: The call failed.
        """
        if not message.ack_inbox or not message.has_ack:
            return _ack_of(message, await self._call(message, deadline))
        use = f"{message.ack_inbox} {message.correlation_id}"
        async with self._alone(message, deadline):
            if use in self._given_up:
                raise UsageError(
                    f"correlation_id must differ from that of an earlier publish without an ack, which may "
                    f"still come on ack_inbox {message.ack_inbox!r}, got {message.correlation_id!r}"
                )
            has_channel = asyncio.Event()
            try:
                return _ack_of(message, await self._call(message, deadline, has_channel.set))
            except (asyncio.CancelledError, AckTimeoutError, TransportError) as exc:
                if has_channel.is_set() if isinstance(exc, asyncio.CancelledError) else exc.sent:
                    self._given_up.add(use)
                raise

    @asynccontextmanager
    async def _alone(self, message: UnaryPublish, deadline: Deadline) -> AsyncIterator[None]:
        """Hold the ack inbox of a message, in the order of the calls."""
        inbox = message.ack_inbox
        use = self._uses.setdefault(inbox, _InboxUse())
        use.calls += 1
        try:
            try:
                async with asyncio.timeout(deadline.left):
                    await use.lock.acquire()
            except TimeoutError as exc:
                text = f"{message.about}: earlier publishes used ack_inbox {inbox!r} for {deadline.timeout} s"
                raise AckTimeoutError(f"{text}: {NOT_STORED}", message.correlation_id, False) from exc
            try:
                yield
            finally:
                use.lock.release()
        finally:
            use.calls -= 1
            if not use.calls:
                del self._uses[inbox]

    async def _call(
        self, message: UnaryPublish, deadline: Deadline, on_channel: Callable[[], None] | None = None
    ) -> bytes:
        """Make the call, which is not repeated once the server may have stored the message."""
        method, about, cluster = message.method, message.about, self._cluster
        try:
            answer = await cluster.call(
                method, message.data, cluster.any_broker, deadline, about, on_channel=on_channel
            )
        except LiftEnvelopeError as exc:
            if isinstance(exc.__cause__, RpcError | TransportError):
                causes = STREAM_ACK_CAUSES if method == "Publish" else SUBJECT_ACK_CAUSES
                cause = exc.__cause__
                raise publish_call_error(method, cause, about, message.correlation_id, causes) from cause
            raise
        return answer or b""


def _ack_of(message: UnaryPublish, answer: bytes) -> Ack | None:
    """Return the ack in the answer, None if the message has none; refuse the ack of another message."""
    ack = _read_ack(answer, message.about)
    if ack is None or not message.has_ack:
        return None
    if ack.correlation_id != message.correlation_id:
        text = (
            f"{message.about}: the ack of another message, {ack.correlation_id!r} of stream "
            f"{ack.stream!r}, came first on the ack inbox {ack.ack_inbox!r}: {MAY_BE_STORED}. "
            "Use an ack inbox that no other publisher uses"
        )
        raise AckTimeoutError(text, message.correlation_id)
    return ack


def _read_ack(answer: bytes, about: str) -> Ack | None:
    """Return the ack in the answer to a unary publish, None if the answer has none."""
    try:
        return ack_in(answer)
    except EnvelopeError as exc:
        text = f"{about}: the server's answer has no readable ack: {answer[:40]!r}; the message may be stored"
        raise ServerProtocolError(text, 1, True) from exc
