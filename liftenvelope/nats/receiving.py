"""Deliver messages to handlers directly, bypassing nats-py's queues and, if accelerated, its parser.

Like ``link``, this module knows nats-py's internals, here for reading: the parser (``nc._ps``), the table of
subscriptions, their queues and counters. There are two shortcuts. Each is used only if the internals are as
expected:

- :func:`deliver_directly`, on any connection: replaces a subscription's queue by its handler. This saves the
  queue and a task, a third of the cost of a message.
- ``accelerate``: replaces the connection's parser by :class:`DirectParser`, which extracts the messages of
  every :class:`DirectSubscription` from the received data. A direct subscription is an ordinary nats-py
  subscription and works as one. Acceleration only shortens the path to the same handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import nats.errors
from nats.aio.subscription import Subscription
from nats.protocol import parser as nats_parser

from liftenvelope._native import frames
from liftenvelope.nats._reader_tap import ReaderTap, tappable
from liftenvelope.nats.headers import header_block
from liftenvelope.nats.link import Link

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

#: Maximum line length in bytes. nats-py has no limit, and rescans its whole buffer for each received piece.
_LONGEST_LINE: Final = 65_536
_CRLF: Final = 2
#: Private names needed to end a subscription without an await.
_ENDING_PRIVATE: Final = ("_id", "_closed", "_stop_processing")
#: Attribute of nats-py's subscription that refers to its DirectSubscription.
_MARK: Final = "_liftenvelope_direct"


class Delivery(NamedTuple):
    """Deliver a consumer's messages as objects. Each status comes in a list of its own.

    Attributes:
        message_class: Class of the messages, a subclass of ``Delivered``.
        acks: Sender of their acks.
        statuses: Prefix of the subjects of statuses, which have no reply subject.
        on_block: Called with blocks of messages, in place of the handler. Default None: in lists.
    """

    message_class: type[frames.Delivered]
    acks: object
    statuses: bytes
    on_block: Callable[[frames.MessageBlock[Any]], None] | None = None


class DirectSubscription:
    """Subscription with a plain function as its handler. Created by :func:`subscribe_direct`.

    Attributes:
        subscription: nats-py's subscription.
        handler: Function that receives lists of messages.
        payloads: Pass only the payloads to the handler.
        delivery: Class and acks of the messages to create; None for tuples.
        on_block: Function that receives blocks of messages.
    """

    subscription: Subscription

    def __init__(
        self,
        nc: Client,
        handler: Callable[[list[Any]], None],
        payloads: bool,
        delivery: Delivery | None = None,
    ) -> None:
        self._nc: Any = nc
        self.handler = handler
        self.payloads = payloads
        self.delivery = delivery
        on_block = None if delivery is None else delivery.on_block
        self.on_block: Callable[[frames.MessageBlock[Any]], None] = on_block or _nobody

    async def unsubscribe(self) -> None:
        """End the subscription, unless it has already ended. No message is handled after the call."""
        self.dismiss()
        await Link(self._nc).unsubscribe(self.subscription)

    def dismiss(self) -> None:
        """Stop handling messages; the subscription itself goes on."""
        self.handler = self.on_block = _nobody  # a draining connection still delivers
        if (parser := parser_of(self._nc)) is not None:
            parser.dismiss(self)

    async def on_message(self, msg: Msg) -> None:
        """Handle a message from nats-py. Never awaits, so nats-py's queue is empty when this starts."""
        self.handler([(msg.subject, msg.reply.encode(), header_block(msg.headers), msg.data)])

    async def on_payload(self, msg: Msg) -> None:
        """Handle the payload of a message from nats-py. Never awaits, like ``on_message``."""
        self.handler([msg.data])


def _nobody(messages: Sized) -> None:
    """Ignore messages: the handler of a dismissed subscription."""


async def subscribe_direct(
    nc: Client,
    subject: str,
    handler: Callable[[list[Any]], None],
    *,
    payloads: bool = False,
) -> DirectSubscription:
    """Subscribe with a plain function, which is called with messages as soon as they are read.

    This works on any connection. On an accelerated connection the handler receives all messages of a read at
    once; otherwise they arrive through nats-py, one by one. No message is dropped if the handler is slow, so
    the handler must return quickly and bound its own buffers.

    Args:
        nc: A connected nats-py client.
        subject: Subject; wildcards are allowed.
        handler: Called with non-empty lists of messages in order. Its exceptions go to the connection's
            ``error_cb``, and the rest of that list is lost.
        payloads: Pass payloads (``bytes``) only. By default messages are tuples: subject (``str``), reply
            (``bytes``, empty if there is none), headers (``bytes``, the block as sent, None if there is none)
            and payload. nats-py parses headers into a dict. If the connection is not accelerated, the block
            is rebuilt from that dict: see :func:`header_block`.

    Raises:
        TransportError: The connection is closed or draining.
    """
    direct = DirectSubscription(nc, handler, payloads)
    callback = direct.on_payload if payloads else direct.on_message
    direct.subscription = await Link(nc).subscribe(subject, callback)
    return _read_directly(nc, direct)


def read_directly(
    nc: Client,
    subscription: Subscription,
    handler: Callable[[list[Any]], None],
    *,
    payloads: bool = False,
    delivery: Delivery | None = None,
) -> DirectSubscription:
    """Read an existing subscription directly while the connection is accelerated.

    Without acceleration nats-py delivers the messages to the subscription's own callback, as before.

    Args:
        nc: Connection of the subscription.
        subscription: Subscription without limits on pending messages or on the number of messages.
        handler: As for :func:`subscribe_direct`.
        payloads: As for :func:`subscribe_direct`.
        delivery: Class and acks of the messages to create instead of tuples. Then each status is passed in a
            list of its own, in order between the messages.
    """
    direct = DirectSubscription(nc, handler, payloads, delivery)
    direct.subscription = subscription
    return _read_directly(nc, direct)


def _read_directly(nc: Client, direct: DirectSubscription) -> DirectSubscription:
    setattr(direct.subscription, _MARK, direct)  # lets a later accelerate() find the subscription
    if (parser := parser_of(nc)) is not None:
        parser.adopt(direct)
    return direct


def parser_of(nc: Client) -> DirectParser | None:
    """Return the DirectParser of an accelerated connection; None for other connections."""
    parser = getattr(nc, "_ps", None)
    return parser if isinstance(parser, DirectParser) else None


class _Handover(asyncio.Queue[Any]):
    """Queue that is always empty: ``put_nowait`` passes each item to the handler at once."""

    def __init__(self, subscription: Any, handler: Callable[[Msg], None]) -> None:
        super().__init__()
        self._subscription = subscription
        self._handler = handler

    def put_nowait(self, item: Any) -> None:
        # nats-py has counted the message as pending; its own task would subtract the size again.
        self._subscription._pending_size -= len(item.data)
        try:
            self._handler(item)
        except Exception as exc:  # noqa: BLE001 - it would end nats-py's read loop
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a handler of NATS messages failed", "exception": exc}
            )


def deliver_directly(subscription: Subscription, handler: Callable[[Msg], None]) -> bool:
    """Pass the messages of a subscription to a handler straight from nats-py's parser, from now on.

    Messages that arrived before still go to the subscription's callback. The task that calls the callback
    keeps waiting, and ends with the subscription.

    Args:
        subscription: Subscription without limits on pending messages, which has a callback or has not
            received messages yet.
        handler: Called with each message. The handler must be fast: it blocks reading from the connection.

    Returns:
        True if done; False if nats-py's internals are not as expected.
    """
    inside: Any = subscription
    if type(getattr(inside, "_pending_queue", None)) is not asyncio.Queue:
        return False
    if not isinstance(getattr(inside, "_pending_size", None), int):
        return False
    inside._pending_queue = _Handover(inside, handler)
    return True


def can_end_at_once(nc: Client, subscription: Subscription) -> bool:
    """Return True if nats-py has the private names that :func:`end_at_once` needs."""
    return hasattr(nc, "_remove_sub") and all(hasattr(subscription, name) for name in _ENDING_PRIVATE)


def end_at_once(nc: Client, subscription: Subscription) -> None:
    """Stop the delivery like ``subscription.unsubscribe()``, but without an await.

    This does not notify the server: :func:`unsub` does.
    """
    inside: Any = subscription
    inside._closed = True
    inside._stop_processing()
    connection: Any = nc
    connection._remove_sub(inside._id)


def unsub(link: Link, subscription: Subscription) -> None:
    """Send UNSUB for a subscription that has ended; if the connection is down, forget its SUB.

    Raises:
        TransportError: The connection is draining: the server is about to drop all its subscriptions.
    """
    inside: Any = subscription
    if link.is_connected:
        link.write(b"UNSUB %d\r\n" % inside._id, 0, 0)
    else:  # the reconnect subscribes again, without this subscription
        link.forget_sub(subscription)


class DirectParser:
    """Replaces a connection's parser: extracts direct messages, and passes all other bytes to nats-py's.

    Order must hold within each subscription. A direct subscription is therefore taken over only between two
    protocol messages of nats-py's parser, and only when its nats-py queue is empty. Until then it is in
    ``_waiting`` and nats-py delivers its messages. A reset puts every direct subscription back there.

    Args:
        nc: The connection.
        max_message: Maximum size of a message, in bytes.

    Attributes:
        users: Number of acceleration handles that were not restored.
        on_reset: Callbacks by owner, run on disconnect and again before the first byte of the next
            connection.
    """

    def __init__(self, nc: Client, max_message: int) -> None:
        self.nc: Any = nc
        self._max_message = max_message
        self.users = 0
        self.on_reset: dict[int, Callable[[], None]] = {}
        self._parser: Any = self.nc._ps
        self._walker = frames.NatsWalker(max_message)
        self._direct: dict[int, DirectSubscription] = {}
        # Subscriptions to be taken over, and True once the state of nats-py's parser was taken over.
        self._waiting: list[DirectSubscription] = []
        self._aligned = False
        self._parsing = 0
        self._left = False
        self._tap: ReaderTap | None = None
        #: Number of bytes in the reader that were walked, and are for nats-py's parser.
        self._handed = 0
        self._reporting: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<liftenvelope's parser before {self._parser!r}>"

    def install(self) -> None:
        """Replace nats-py's parser, and adopt the existing direct subscriptions."""
        for sub in self.nc._subs.values():
            if (direct := getattr(sub, _MARK, None)) is not None:
                self.adopt(direct)
        self.nc._ps = self

    def leave(self) -> None:
        """Restore nats-py's parser, which receives the bytes of an incomplete message."""
        if self.nc._ps is self:
            self.nc._ps = self._parser
        self._left = True
        self._walker.pass_all()
        tap, self._tap = self._tap, None
        if tap is not None:
            tap.remove()
        if tap is not None and self._handed:
            tap.give(self._handed, self._walker.walk()[1])  # bytes that came later may stand behind those
        elif not self._parsing:  # otherwise parse() or take() passes on the rest itself
            self._parser.buf.extend(self._walker.walk()[1])
        self._handed = 0

    def adopt(self, direct: DirectSubscription) -> None:
        """Extract a subscription's messages as soon as nats-py has delivered those in its queue."""
        self._waiting.append(direct)

    def dismiss(self, direct: DirectSubscription) -> None:
        """Return a subscription's messages to nats-py."""
        sid = direct.subscription._id
        if direct in self._waiting:
            self._waiting.remove(direct)
        if self._direct.pop(sid, None) is not None:
            self._walker.close(sid)

    def reset(self) -> None:
        """Reset: nats-py calls this when a connection is lost, and before the first byte of the next."""
        self._walker.reset()
        self._parser.reset()
        self._handed = 0
        if self._left:  # another parser wraps this one, which must pass all bytes through
            self._walker.pass_all()
        for direct in list(self._direct.values()):  # nats-py may still have their messages queued
            self.dismiss(direct)
            self.adopt(direct)
        for call in list(self.on_reset.values()):
            call()

    async def parse(self, data: bytes = b"") -> None:
        """Parse received data. Raises the errors of nats-py's parser."""
        self._parsing += 1
        try:
            if not self._aligned:
                self._align()
            if self._handed:
                own, data = data[: self._handed], data[self._handed :]
                self._handed -= len(own)
                await self._parser.parse(own)
                self._check_held()
                if self._handed:
                    return
            # Not while nats-py holds half a message: it may be of a waiting one, and must not be overtaken.
            if self._waiting and self._parser.state == nats_parser.AWAITING_CONTROL_LINE:
                self._take_over()
            self._walker.feed(data)
            left = b"-"
            while left:
                taken, left = self._walker.walk()
                for sid, size, messages in taken:
                    if (error := self._deliver(sid, size, messages)) is not None:
                        await self.nc._error_cb(error)
                if left:
                    await self._parser.parse(left)
                    self._check_held()
            if self._left:  # a handler called leave(): pass on the bytes of an incomplete message
                await self._parser.parse(self._walker.walk()[1])
            elif (transport := tappable(self.nc._transport)) is not None:
                self._tap = ReaderTap(transport, self.nc._transport._io_reader, self)
        finally:
            self._parsing -= 1

    @property
    def takes_now(self) -> bool:
        """True if bytes may be parsed as soon as they are received, unless the reader has earlier ones."""
        return not (self._parsing or self._waiting) and self.nc._ps is self

    def take(self, data: memoryview) -> bytes:
        """Parse received bytes up to the first that are for nats-py, and return those that it must read.

        :meth:`parse` goes on behind them.
        """
        self._parsing += 1
        try:
            taken, left = self._walker.walk_over(data)
            for sid, size, messages in taken:
                if (error := self._deliver(sid, size, messages)) is not None:
                    self._report(error)
            if self._left:  # a handler called leave()
                return left + self._walker.walk()[1]
            self._handed = len(left)
            return left
        finally:
            self._parsing -= 1

    def _report(self, error: Exception) -> None:
        task = asyncio.get_running_loop().create_task(self.nc._error_cb(error))
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    def _check_held(self) -> None:
        """Refuse a line or message that nats-py's parser would buffer without limit.

        Raises:
            ProtocolError: nats-py's own error, on which its read loop drops the connection and reconnects.
        """
        parser = self._parser
        if parser.state == nats_parser.AWAITING_CONTROL_LINE:
            if len(parser.buf) > _LONGEST_LINE:
                raise nats.errors.ProtocolError(f"nats: a line is longer than {_LONGEST_LINE} bytes")
        elif parser.needed > self._max_message:
            text = f"nats: a message of {parser.needed} bytes; max_message_bytes is {self._max_message}"
            raise nats.errors.ProtocolError(text)

    def _align(self) -> None:
        """Start at the point where nats-py's parser has stopped, possibly in the middle of a message."""
        parser = self._parser
        if parser.state == nats_parser.AWAITING_CONTROL_LINE:
            self._walker.feed(bytes(parser.buf))
            parser.buf.clear()
        elif (left := parser.needed + _CRLF - len(parser.buf)) > 0:
            self._walker.skip(left)
        else:  # nats-py's parser has stopped in the middle of a message
            self._walker.pass_all()
        self._aligned = True

    def _take_over(self) -> None:
        waiting, self._waiting = self._waiting, []
        for direct in waiting:
            sub: Any = direct.subscription
            if self.nc._subs.get(sub._id) is not sub:
                continue  # ended by the connection
            if sub._pending_queue.empty():
                self._direct[sub._id] = direct
                self._open(sub._id, direct)
            else:
                self._waiting.append(direct)

    def _open(self, sid: int, direct: DirectSubscription) -> None:
        if direct.delivery is None:
            self._walker.open(sid, direct.payloads)
        else:
            message_class, acks, statuses, on_block = direct.delivery
            self._walker.open_delivered(sid, message_class, acks, statuses, on_block is not None)

    def _deliver(
        self, sid: int, size: int, messages: list[Any] | frames.MessageBlock[Any]
    ) -> Exception | None:
        """Pass messages to their handler; return its error, which is for ``error_cb``."""
        nc = self.nc
        nc.stats["in_msgs"] += len(messages)
        nc.stats["in_bytes"] += size
        direct = self._direct.get(sid)
        if direct is None:
            return None  # ended meanwhile: nats-py also counts and drops such messages
        sub: Any = direct.subscription
        if nc._subs.get(sid) is not sub:
            self.dismiss(direct)  # ended by the connection
            return None
        sub._received += len(messages)
        try:
            if isinstance(messages, list):
                direct.handler(messages)
            else:
                direct.on_block(messages)
        except Exception as exc:  # noqa: BLE001 - to error_cb
            return exc
        return None
