"""Subscription for the replies to pulls, which passes messages directly to a function.

On an accelerated connection all messages of one read arrive together, straight from the parser. On other
connections nats-py parses the messages, and they arrive one by one. The subscription can be ended at once,
without an ``await``. If nats-py's private names have changed, everything goes through public methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from liftenvelope.errors import TransportError
from liftenvelope.nats.headers import headers_of
from liftenvelope.nats.link import Link
from liftenvelope.nats.receiving import (
    Delivery,
    DirectSubscription,
    can_end_at_once,
    deliver_directly,
    end_at_once,
    read_directly,
    unsub,
)

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from liftenvelope._native import frames

__all__ = ["PullInbox"]

#: Tasks that use public methods to publish or unsubscribe; the event loop holds tasks only weakly.
_ending: Final[set[asyncio.Task[None]]] = set()


class PullInbox:
    """Inbox for pulls, with a subject for each pull: ``<inbox>.<number>``.

    Messages keep the subject of their stream, so a reply to ``<inbox>.<number>`` without a reply subject is
    always a status of the server, for the pull with that number.

    Args:
        nc: The user's connection.
        message_class: Class of the messages.
        acks: Sender of their acks.
        on_messages: Called with lists of messages, which the function may keep. The function must not raise:
            it runs in nats-py's reader.
        on_status: Called with the number of a pull, 0 for none, and the headers of a status. The function
            must not raise either.
        on_block: Called with blocks of messages, in place of ``on_messages``, while the connection is
            accelerated. Default: all messages come in lists.

    Attributes:
        sized: Set the size of each message. This costs time when nats-py parses the messages.
    """

    def __init__(
        self,
        nc: Client,
        message_class: type[frames.Delivered],
        acks: object,
        on_messages: Callable[[list[Any]], None],
        on_status: Callable[[int, Mapping[str, str]], None],
        *,
        sized: bool = False,
        on_block: Callable[[frames.MessageBlock[Any]], None] | None = None,
    ) -> None:
        self._nc = nc
        self._link = Link(nc)
        self._message_class, self._acks = message_class, acks
        self._on_messages, self._on_status, self._on_block = on_messages, on_status, on_block
        self.sized = sized
        self._prefix = self._link.new_inbox() + "."
        self._subscription: Subscription | None = None
        self._read: DirectSubscription | None = None
        self._straight = False

    async def open(self) -> None:
        """Subscribe to the inbox.

        Raises:
            TransportError: The connection is closed or draining.
        """
        self._link.check_open()
        subject = self._prefix + "*"
        sub: Subscription | None = None
        if self._link.direct:
            sub = await self._link.subscribe(subject, None)
            # Safe to switch the handler: no pull was sent, so no message has arrived.
            self._straight = can_end_at_once(self._nc, sub) and deliver_directly(sub, self._take)
            if not self._straight:
                await self._link.unsubscribe(sub)
                sub = None
        self._subscription = sub or await self._link.subscribe(subject, self._hand_on)
        delivery = Delivery(self._message_class, self._acks, self._prefix.encode(), self._on_block)
        self._read = read_directly(self._nc, self._subscription, self._take_list, delivery=delivery)

    async def _hand_on(self, msg: Msg) -> None:
        self._take(msg)

    def _take(self, msg: Msg) -> None:
        """Handle a message or a status that nats-py has parsed."""
        subject, reply, data, headers = msg.subject, msg.reply, msg.data, msg.headers
        if self._is_status(subject, reply):
            self._tell(subject, headers or {})
            return
        message = self._message_class(subject, reply, data, headers, self._acks)
        if self.sized:
            message._size = size_of(msg)
        self._on_messages([message])

    def _take_list(self, messages: list[Any]) -> None:
        """Handle messages, or a single status, that the connection's parser has made."""
        first = messages[0]
        if self._is_status(first.subject, first.reply):
            self._tell(first.subject, headers_of(first._headers or b""))
        else:
            self._on_messages(messages)

    def _is_status(self, subject: str, reply: str) -> bool:
        # Never a stored message, whatever its headers: those arrive with their stream's subject.
        return not reply and subject.startswith(self._prefix)

    def _tell(self, subject: str, headers: Mapping[str, str]) -> None:
        number = subject[len(self._prefix) :]
        self._on_status(int(number) if number.isdecimal() else 0, headers)

    @property
    def is_open(self) -> bool:
        """True while the inbox is subscribed."""
        return self._subscription is not None

    def send(self, subject: str, number: int, payload: bytes) -> None:
        """Publish a pull; its statuses carry ``number``.

        Raises:
            TransportError: The connection is closed or draining.
        """
        if self._link.direct:
            words = subject.encode(), self._prefix.encode(), number, len(payload), payload
            # Write now: a reader that is busy with buffered messages never yields to nats-py's flusher.
            self._link.write_now(b"PUB %b %b%d %d\r\n%b\r\n" % words, 1, len(payload))
        else:
            _later(self._nc.publish(subject, payload, reply=f"{self._prefix}{number}"))

    def close(self) -> None:
        """Unsubscribe now: the server drops the waiting pulls, and messages in flight are discarded."""
        sub, self._subscription = self._subscription, None
        if self._read is not None:
            self._read.dismiss()
        if sub is None:
            return
        if not self._straight:
            _later(self._link.unsubscribe(sub))
            return
        end_at_once(self._nc, sub)
        try:
            unsub(self._link, sub)
        except TransportError:
            return  # draining: the server is about to drop all subscriptions of the connection

    async def drain(self, timeout: float) -> None:
        """Unsubscribe, but still receive the messages in flight.

        Args:
            timeout: Seconds to wait for them.
        """
        if self._subscription is None:
            return
        try:
            if self._straight:
                unsub(self._link, self._subscription)
                await self._link.barrier(timeout)
        except TransportError:
            return  # connection lost or closed: nothing is in flight any more
        finally:
            self.close()


def _later(work: Any) -> None:
    task = asyncio.ensure_future(work)
    _ending.add(task)
    task.add_done_callback(_ending.discard)


def size_of(msg: Msg) -> int:
    """Return the size of a message in bytes: subject, reply, headers and payload.

    nats-py keeps only one header of each name, so the size of a message with repeated names is too small.
    """
    size = len(msg.subject.encode()) + len(msg.reply.encode()) + len(msg.data)
    if msg.headers:
        own = ((name.encode(), value.encode()) for name, value in msg.headers.items())
        size += 12 + sum(len(name) + len(value) + 4 for name, value in own)
    return size
