"""What one gateway has changed of a stream, the others know when the call that changed it returns.

Every gateway follows the records in their bucket, each at its own pace. So the one that changes a record asks
the others whether they have seen that revision, and they answer as soon as they have: a client that pauses a
stream by one gateway and then publishes by another one finds it paused. Who does not answer in time is dead,
or will see it later.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import LiftEnvelopeError
from liftenvelope.gateway.names import encode_name
from liftenvelope.nats._link import Link

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from liftenvelope.gateway.brokers import Brokers
    from liftenvelope.gateway.registry import StreamRegistry
    from liftenvelope.jetstream.context import JetStream

__all__ = ["Agreement"]

#: How long a gateway is waited for that hangs, in seconds. One that was killed is not waited for.
_PATIENCE: Final = 5.0


class Agreement:
    """Asks the other gateways what they have seen, and answers them.

    Args:
        js: JetStream, for its connection.
        registry: What this gateway has seen.
        brokers: The gateways.
    """

    def __init__(self, js: JetStream, registry: StreamRegistry, brokers: Brokers) -> None:
        self._api = js.api
        self._link = Link(js.api.nc)
        self._registry = registry
        self._brokers = brokers
        self._subscription: Subscription | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Answer from now on.

        Raises:
            TransportError: The connection is closed or draining.
        """
        self._subscription = await self._link.subscribe(_subject(self._brokers.me), self._asked)

    async def close(self) -> None:
        """Answer no more."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await self._link.unsubscribe(subscription)
        for task in self._answering:
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering)

    async def reach(self, name: str) -> None:
        """Wait until the others know what this gateway knows of a stream, if that is soon.

        Args:
            name: The stream, which may be gone.
        """
        others = [id_ for id_ in self._brokers.alive if id_ != self._brokers.me]
        question = json.dumps({"name": name, "revision": self._registry.revision(name)}).encode()
        await asyncio.gather(*(self._ask(id_, question) for id_ in others))

    async def _ask(self, id_: str, question: bytes) -> None:
        try:
            await self._api.ask(_subject(id_), question, timeout=_PATIENCE)
        except LiftEnvelopeError:
            return  # it is dead, or the connection is lost: it learns of it when it is back

    async def _asked(self, msg: Msg) -> None:
        # In a task: nats-py calls with the next one when this one is done.
        task = asyncio.get_running_loop().create_task(self._answer(msg))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, msg: Msg) -> None:
        try:
            question = json.loads(msg.data)
            name, revision = str(question["name"]), int(question["revision"])
        except (ValueError, TypeError, KeyError):
            return  # no gateway asks like that
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._registry.seen(name, revision)
            await self._api.send(msg.reply, b"")
        except (TimeoutError, LiftEnvelopeError):
            return  # whoever asks waits no longer, or can't be told


def _subject(id_: str) -> str:
    return f"_lift.seen.{encode_name(id_)}"
