"""A subscription for the answers to pulls, whose messages go straight to a function.

nats-py puts every message of a subscription in a queue, from which a task hands them on one by one. Here the
queue's place is taken by the function itself, which saves both, and the subscription can be ended at once,
without an ``await``. Where nats-py's private names have changed, everything goes through public methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from nats.aio.transport import TcpTransport

from liftenvelope.errors import TransportError
from liftenvelope.nats._direct import Handover
from liftenvelope.nats._link import Link

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

__all__ = ["PullInbox"]

_OF_CONNECTION: Final = ("_remove_sub", "_transport")
_OF_SUBSCRIPTION: Final = ("_id", "_closed", "_pending_queue", "_pending_size", "_stop_processing")
#: Tasks that end a subscription by public methods; the loop itself holds tasks only weakly.
_ending: Final[set[asyncio.Task[None]]] = set()


class PullInbox:
    """An inbox of its own, with a subject for each pull: ``<inbox>.<number>``.

    Args:
        nc: The user's connection.
        on_message: Called with every message and status. It must not raise: it runs in nats-py's reader.

    Attributes:
        prefix: What the subjects of statuses begin with, including the last dot.
    """

    def __init__(self, nc: Client, on_message: Callable[[Msg], None]) -> None:
        self._nc: Any = nc
        self._link = Link(nc)
        self._on_message = on_message
        self._subscription: Any = None
        self.prefix = self._link.new_inbox() + "."

    async def open(self) -> None:
        """Subscribe.

        Raises:
            TransportError: The connection is closed or draining.
        """
        self._link.check_open()
        sub: Subscription
        if self._link.direct and all(hasattr(self._nc, name) for name in _OF_CONNECTION):
            sub = await self._nc.subscribe(self.prefix + "*", pending_msgs_limit=0, pending_bytes_limit=0)
            if all(hasattr(sub, name) for name in _OF_SUBSCRIPTION):
                # Nothing has come yet: nothing was pulled.
                sub._pending_queue = Handover(sub, self._on_message)
                self._subscription = sub
                return
            await self._link.unsubscribe(sub)
        self._subscription = await self._link.subscribe(self.prefix + "*", self._hand_on)

    async def _hand_on(self, msg: Msg) -> None:
        self._on_message(msg)

    @property
    def _straight(self) -> bool:
        return isinstance(getattr(self._subscription, "_pending_queue", None), Handover)

    @property
    def is_open(self) -> bool:
        """Whether there is a subscription."""
        return self._subscription is not None

    def send(self, subject: str, number: int, payload: bytes) -> None:
        """Publish a pull whose statuses come back with its number.

        Raises:
            TransportError: The connection is closed or draining.
        """
        reply = f"{self.prefix}{number}"
        if self._link.direct:
            head = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
            self._link.write(b"%b%b\r\n" % (head, payload), 1, len(payload))
        else:
            _later(self._nc.publish(subject, payload, reply=reply))

    def flush(self) -> None:
        """Hand what is buffered to the socket now, without waiting for nats-py's flusher to have its turn."""
        nc = self._nc
        # Other transports, such as that of a WebSocket, send only what is awaited.
        is_tcp = type(nc._transport) is TcpTransport
        if is_tcp and self._straight and nc.is_connected and nc._pending:
            frames, nc._pending, nc._pending_data_size = nc._pending, [], 0
            nc._transport.writelines(frames)

    def close(self) -> None:
        """Unsubscribe now: the server forgets the pulls that wait, and what is on its way is dropped."""
        sub, straight = self._subscription, self._straight
        self._subscription = None
        if sub is None:
            return
        if not straight:
            _later(self._link.unsubscribe(sub))
            return
        sub._closed = True
        sub._stop_processing()
        self._nc._remove_sub(sub._id)
        self._unsub(sub)

    def _unsub(self, sub: Any) -> None:
        if not self._nc.is_connected:
            return  # subscriptions are made anew with the next connection, and this one is not
        try:
            self._link.write(b"UNSUB %d\r\n" % sub._id, 0, 0)
        except TransportError:
            return  # draining: the server is about to forget the whole connection

    async def drain(self, timeout: float) -> None:
        """Unsubscribe, but take what is on its way.

        Args:
            timeout: How long to wait for it, in seconds.
        """
        if self._subscription is None:
            return
        try:
            if self._straight:
                self._unsub(self._subscription)
                await self._link.barrier(timeout)
        except TransportError:
            return  # nothing is on its way any more
        finally:
            self.close()


def _later(work: Any) -> None:
    task = asyncio.ensure_future(work)
    _ending.add(task)
    task.add_done_callback(_ending.discard)
