"""Read-your-writes across gateways: a call that changes a stream returns when all gateways know the change.

Every gateway follows the bucket of records at its own pace. The gateway that changes a record asks the others
to confirm that revision, and each of them answers as soon as it has seen the revision. So a client that
pauses a stream through one gateway and then publishes through another finds the stream paused. A gateway that
does not answer in time is dead, or will see the change later.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.consumers.tasks import cancel
from liftenvelope.errors import InternalError, LiftEnvelopeError
from liftenvelope.gateway._cluster.stored_json import check_fields, read_stored
from liftenvelope.gateway._protocol.names import encode_name
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from liftenvelope.gateway._cluster.brokers import LiveBrokers
    from liftenvelope.gateway._cluster.registry import StreamRegistry
    from liftenvelope.jetstream.context import JetStream
    from liftenvelope.nats.replies import ReplySubjects

__all__ = ["Agreement"]

#: Seconds to wait for a gateway that hangs. Asking a killed gateway fails at once: it has no subscription.
_PATIENCE: Final = 5.0
#: Questions that are answered at once. Any client that may publish here can ask.
_MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Question:
    """Which revision of a stream another gateway wants confirmed."""

    name: str
    revision: int


class Agreement:
    """Asks the other gateways to confirm revisions, and answers their requests.

    Args:
        js: JetStream, for its connection.
        registry: Streams that this gateway has seen.
        brokers: The live gateways.
        replies: Decides which reply subjects get an answer.
    """

    def __init__(
        self, js: JetStream, registry: StreamRegistry, brokers: LiveBrokers, replies: ReplySubjects
    ) -> None:
        self._api = js.api
        self._link = Link(js.api.nc)
        self._registry = registry
        self._brokers = brokers
        self._replies = replies
        self._subscription: Subscription | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to answer the other gateways.

        Raises:
            TransportError: The connection is closed or draining.
        """
        self._subscription = await self._link.subscribe(_subject(self._brokers.me), self._asked)

    async def close(self) -> None:
        """Stop answering."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await self._link.unsubscribe(subscription)
        await cancel(self._answering)

    async def reach(self, name: str) -> None:
        """Wait until the other gateways have seen this gateway's revision of a stream, for at most 5 seconds.

        Args:
            name: Name of the stream, which may have been deleted.
        """
        others = [id_ for id_ in self._brokers.alive if id_ != self._brokers.me]
        question = json.dumps({"name": name, "revision": self._registry.revision(name)}).encode()
        await asyncio.gather(*(self._ask(id_, question) for id_ in others))

    async def _ask(self, id_: str, question: bytes) -> None:
        try:
            await self._api.ask(_subject(id_), question, timeout=_PATIENCE)
        except LiftEnvelopeError:
            return  # the gateway is dead or cut off: it reads the records when it is back

    async def _asked(self, msg: Msg) -> None:
        if len(self._answering) >= _MOST or not self._replies.admits(msg):
            return
        # In a task, because nats-py passes on the next message only after this callback returns.
        task = asyncio.get_running_loop().create_task(self._answer(msg))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, msg: Msg) -> None:
        try:
            asked = read_stored(_question, msg.data, "a question")
        except InternalError:
            return  # not from a gateway
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._registry.seen(asked.name, asked.revision)
            await self._api.send(msg.reply, b"")
        except (TimeoutError, LiftEnvelopeError):
            return  # the asking gateway has stopped waiting, or is unreachable


def _question(found: dict[str, Any]) -> _Question:
    values = check_fields(_Question, found)
    return _Question(values["name"], values["revision"])


def _subject(id_: str) -> str:
    return f"_lift.seen.{encode_name(id_)}"
