"""Messages straight to their handler, past nats-py's queues: from its parser, or from the socket itself.

Like ``_link``, this knows nats-py's inside, here the reading side of it: its parser (``nc._ps``), its table
of subscriptions, their queues and counters. Two short cuts are taken, each only where that inside is as it
was found to be:

- :func:`deliver_directly`, on any connection: the place of a subscription's queue is taken by its handler,
  which saves the queue and a task, a third of what a message costs.
- ``accelerate``: the place of the connection's parser is taken by :class:`DirectParser`, which takes out of
  what is read the messages of every :class:`DirectSubscription`. That is an ordinary nats-py subscription,
  and works as one; while the connection is accelerated, its messages take a shorter way to the same handler.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import nats.aio.client
import nats.errors
from nats.aio.subscription import Subscription
from nats.protocol import parser as nats_parser

from liftenvelope._native import frames
from liftenvelope.nats._headers import header_block
from liftenvelope.nats._link import Link

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

#: Longest line to accept. nats-py has no limit, and searches all that it holds for each piece that comes.
_LONGEST_LINE: Final = 65_536
_CRLF: Final = 2
_PRIVATE: Final = ("_ps", "_subs", "_error_cb", "stats")
_PARSER_PRIVATE: Final = ("buf", "state", "needed", "reset", "parse")
_SUBSCRIPTION_PRIVATE: Final = ("_id", "_received", "_pending_queue")
#: What it takes to end a subscription without an await.
_ENDING_PRIVATE: Final = ("_id", "_closed", "_stop_processing")
#: The attribute of nats-py's subscription that says who reads it directly.
_MARK: Final = "_liftenvelope_direct"
_STATES: Final = ("AWAITING_CONTROL_LINE", "AWAITING_MSG_PAYLOAD")


class Delivery(NamedTuple):
    """That messages of a consumer are wanted as objects, and nats-py is to see the statuses between them.

    Attributes:
        message_class: Their class, a subclass of ``Delivered``.
        acks: What sends their acks.
        statuses: What the subjects of statuses begin with.
    """

    message_class: type
    acks: object
    statuses: bytes


class DirectSubscription:
    """A subscription with a plain function for a handler. Made by :func:`subscribe_direct`.

    Attributes:
        subscription: nats-py's own.
        handler: Who gets the messages.
        payloads: Whether the handler wants their payloads alone.
        delivery: Of what objects it wants them to be made, None for tuples.
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

    async def unsubscribe(self) -> None:
        """End it, if the connection has not ended it already. No message is handled after the call."""
        self.dismiss()
        await Link(self._nc).unsubscribe(self.subscription)

    def dismiss(self) -> None:
        """Have no message handled any more; the subscription goes on."""
        self.handler = _nobody  # a connection that drains goes on to deliver
        if (parser := parser_of(self._nc)) is not None:
            parser.dismiss(self)

    async def on_message(self, msg: Msg) -> None:
        """Take a message from nats-py. It never waits: its queue is empty as soon as this has begun."""
        self.handler([(msg.subject, msg.reply.encode(), header_block(msg.headers), msg.data)])

    async def on_payload(self, msg: Msg) -> None:
        """Take the payload of a message from nats-py, in the same way."""
        self.handler([msg.data])


def _nobody(messages: list[Any]) -> None:
    """Stands where a handler was."""


async def subscribe_direct(
    nc: Client, subject: str, handler: Callable[[list[Any]], None], *, payloads: bool = False
) -> DirectSubscription:
    """Subscribe with a plain function, which gets messages as soon as they are read.

    Works on any connection. On an accelerated one the handler gets all messages of a read at once; elsewhere
    they come through nats-py, one by one. Nothing is ever dropped for being slow: the handler is to return
    soon, and to bound what it keeps.

    Args:
        nc: A connected nats-py client.
        subject: The subject, which may have wildcards.
        handler: Called with lists of messages, never empty, in their order. What it raises goes to the
            connection's ``error_cb``, and the rest of that list is lost.
        payloads: Whether the messages are payloads (``bytes``) alone. By default they are tuples: subject
            (``str``), reply (``bytes``, empty if there is none), headers (``bytes``, the block as it was
            sent, None if there is none) and payload. nats-py reads headers into a dict, from which the block
            is made again where the connection is not accelerated: see :func:`header_block`.

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
    """Have a subscription of our own read directly while the connection is accelerated, and only then.

    For those that have their own way otherwise: there, nats-py goes on to deliver as the subscription says.

    Args:
        nc: Its connection.
        subscription: One without limits on what is pending or on how many messages it gets.
        handler: As for :func:`subscribe_direct`.
        payloads: As for :func:`subscribe_direct`.
        delivery: Of what objects the messages are to be made, instead of tuples. Statuses then come as
            nats-py delivers them, in their place between the messages.
    """
    direct = DirectSubscription(nc, handler, payloads, delivery)
    direct.subscription = subscription
    return _read_directly(nc, direct)


def _read_directly(nc: Client, direct: DirectSubscription) -> DirectSubscription:
    setattr(direct.subscription, _MARK, direct)  # where accelerate() finds it
    if (parser := parser_of(nc)) is not None:
        parser.adopt(direct)
    return direct


def parser_of(nc: Client) -> DirectParser | None:
    """The parser of ours that a connection has, if it is accelerated."""
    parser = getattr(nc, "_ps", None)
    return parser if isinstance(parser, DirectParser) else None


class _Handover(asyncio.Queue[Any]):
    """A queue in which nothing is ever waiting: what is put in goes to the handler at once."""

    def __init__(self, subscription: Any, handler: Callable[[Msg], None]) -> None:
        super().__init__()
        self._subscription = subscription
        self._handler = handler

    def put_nowait(self, item: Any) -> None:
        # nats-py has counted the message as pending, and would count it off again in its task.
        self._subscription._pending_size -= len(item.data)
        try:
            self._handler(item)
        except Exception as exc:  # noqa: BLE001 - in nats-py's read loop it would cost the connection
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a handler of NATS messages failed", "exception": exc}
            )


def deliver_directly(subscription: Subscription, handler: Callable[[Msg], None]) -> bool:
    """Have messages given to the handler from where they are parsed, from now on.

    What has arrived before still goes to the subscription's callback. The task that calls that goes on
    waiting, and ends with the subscription.

    Args:
        subscription: One without limits on what is pending, made with a callback or without messages yet.
        handler: What is called with each message. It must be quick: nothing else of the connection is read
            meanwhile.

    Returns:
        Whether it is done; not where nats-py's inside is another.
    """
    inside: Any = subscription
    if type(getattr(inside, "_pending_queue", None)) is not asyncio.Queue:
        return False
    if not isinstance(getattr(inside, "_pending_size", None), int):
        return False
    inside._pending_queue = _Handover(inside, handler)
    return True


def can_end_at_once(nc: Client, subscription: Subscription) -> bool:
    """Whether :func:`end_at_once` works here."""
    return hasattr(nc, "_remove_sub") and all(hasattr(subscription, name) for name in _ENDING_PRIVATE)


def end_at_once(nc: Client, subscription: Subscription) -> None:
    """Have nothing more delivered, as ``subscription.unsubscribe()`` does, but without an await.

    The server is told by :func:`unsub`.
    """
    inside: Any = subscription
    inside._closed = True
    inside._stop_processing()
    connection: Any = nc
    connection._remove_sub(inside._id)


def unsub(link: Link, subscription: Subscription) -> None:
    """Tell the server, if it is there, that a subscription has ended.

    Raises:
        TransportError: The connection is draining: the server is about to forget all of it.
    """
    inside: Any = subscription
    if link.is_connected:  # else subscriptions are made anew with the next connection, and this one is not
        link.write(b"UNSUB %d\r\n" % inside._id, 0, 0)


class DirectParser:
    """Stands in the place of a connection's parser, which still sees all but what goes to handlers directly.

    Args:
        nc: The connection.
        max_message: Longest message in bytes to accept.

    Attributes:
        users: How many have asked for it and not given it back.
        on_reset: By whoever they belong to, what is called when the connection is lost, and again before the
            first byte of the next.
    """

    def __init__(self, nc: Client, max_message: int) -> None:
        self.nc: Any = nc
        self._max_message = max_message
        self.users = 0
        self.on_reset: dict[int, Callable[[], None]] = {}
        self._parser: Any = self.nc._ps
        self._walker = frames.NatsWalker(max_message)
        self._direct: dict[int, DirectSubscription] = {}
        # Subscriptions that are yet to be taken over, and whether nats-py's parser is.
        self._waiting: list[DirectSubscription] = []
        self._aligned = False
        self._parsing = 0
        self._left = False

    def __repr__(self) -> str:
        return f"<liftenvelope's parser before {self._parser!r}>"

    def install(self) -> None:
        """Take the place, and the subscriptions that are there already."""
        for sub in self.nc._subs.values():
            if (direct := getattr(sub, _MARK, None)) is not None:
                self.adopt(direct)
        self.nc._ps = self

    def leave(self) -> None:
        """Give the place back. What has come in part goes to nats-py's parser."""
        if self.nc._ps is self:
            self.nc._ps = self._parser
        self._left = True
        self._walker.pass_all()
        if not self._parsing:  # else parse() hands over the rest itself
            self._parser.buf.extend(self._walker.walk()[1])

    def adopt(self, direct: DirectSubscription) -> None:
        """Take a subscription's messages as soon as nats-py has handled those that it has in its queue."""
        self._waiting.append(direct)

    def dismiss(self, direct: DirectSubscription) -> None:
        """Leave a subscription's messages to nats-py."""
        sid = direct.subscription._id
        if direct in self._waiting:
            self._waiting.remove(direct)
        if self._direct.pop(sid, None) is not None:
            self._walker.close(sid)

    def reset(self) -> None:
        """Begin anew: nats-py calls this when a connection is lost, and before the first byte of the next."""
        self._walker.reset()
        self._parser.reset()
        if self._left:  # and somebody else has taken the place before it left
            self._walker.pass_all()
        for direct in list(self._direct.values()):  # nats-py may still have messages of theirs in its queues
            self.dismiss(direct)
            self.adopt(direct)
        for call in list(self.on_reset.values()):
            call()

    async def parse(self, data: bytes = b"") -> None:
        """Take in what was read. Raises whatever nats-py's parser raises."""
        self._parsing += 1
        try:
            if not self._aligned:
                self._align()
            # Not while nats-py has half a message: it may be one of those, and must not be overtaken.
            if self._waiting and self._parser.state == nats_parser.AWAITING_CONTROL_LINE:
                self._take_over()
            self._walker.feed(data)
            left = b"-"
            while left:
                taken, left = self._walker.walk()
                for sid, size, messages in taken:
                    await self._deliver(sid, size, messages)
                if left:
                    await self._parser.parse(left)
                    self._check_held()
            if self._left:  # a handler has had it leave: a message may have come in part
                await self._parser.parse(self._walker.walk()[1])
        finally:
            self._parsing -= 1

    def _check_held(self) -> None:
        """Refuse what nats-py's parser would hold without end: it is lost with the connection.

        Raises:
            ProtocolError: nats-py's. Its read loop ends the connection for it, and makes another.
        """
        parser = self._parser
        if parser.state == nats_parser.AWAITING_CONTROL_LINE:
            if len(parser.buf) > _LONGEST_LINE:
                raise nats.errors.ProtocolError(f"nats: a line is longer than {_LONGEST_LINE} bytes")
        elif parser.needed > self._max_message:
            text = f"nats: a message of {parser.needed} bytes; max_message_bytes is {self._max_message}"
            raise nats.errors.ProtocolError(text)

    def _align(self) -> None:
        """Begin where nats-py's parser has stopped, which may be anywhere."""
        parser = self._parser
        if parser.state == nats_parser.AWAITING_CONTROL_LINE:
            self._walker.feed(bytes(parser.buf))
            parser.buf.clear()
        elif (left := parser.needed + _CRLF - len(parser.buf)) > 0:
            self._walker.skip(left)
        else:  # it has given up in the middle of a message
            self._walker.pass_all()
        self._aligned = True

    def _take_over(self) -> None:
        waiting, self._waiting = self._waiting, []
        for direct in waiting:
            sub: Any = direct.subscription
            if self.nc._subs.get(sub._id) is not sub:
                continue  # ended by its connection
            if sub._pending_queue.empty():
                self._direct[sub._id] = direct
                self._open(sub._id, direct)
            else:
                self._waiting.append(direct)

    def _open(self, sid: int, direct: DirectSubscription) -> None:
        if direct.delivery is None:
            self._walker.open(sid, direct.payloads)
        else:
            self._walker.open_delivered(sid, *direct.delivery)

    async def _deliver(self, sid: int, size: int, messages: list[Any]) -> None:
        nc = self.nc
        nc.stats["in_msgs"] += len(messages)
        nc.stats["in_bytes"] += size
        direct = self._direct.get(sid)
        if direct is None:
            return  # ended meanwhile: nats-py counts such messages too, and drops them
        sub: Any = direct.subscription
        if nc._subs.get(sid) is not sub:
            self.dismiss(direct)  # ended by its connection
            return
        sub._received += len(messages)
        try:
            direct.handler(messages)
        except Exception as exc:  # noqa: BLE001 - a handler's fault goes where nats-py takes those of callbacks
            await nc._error_cb(exc)


def what_is_unknown(nc: Client) -> str | None:
    """Say why this connection's parser can't be replaced; None if it can."""
    missing = [name for name in _PRIVATE if not hasattr(nc, name)]
    missing += [name for name in _STATES if not hasattr(nats_parser, name)]
    if missing:
        return f"it has no {missing[0]}"
    parser = nc._ps
    missing = [name for name in _PARSER_PRIVATE if not hasattr(parser, name)]
    missing += [name for name in _SUBSCRIPTION_PRIVATE if name not in vars(Subscription(nc))]
    if missing:
        return f"its parser or its subscriptions have no {missing[0]}"
    if type(parser) is not nats_parser.Parser:
        return f"its parser is a {type(parser).__qualname__} of {type(parser).__module__}"
    if not inspect.iscoroutinefunction(parser.parse) or list(inspect.signature(parser.parse).parameters) != [
        "data"
    ]:
        return "its parser is called in another way"
    buffer: object = parser.buf
    return None if isinstance(buffer, bytearray) else "its parser keeps what was read in another way"


def nats_py_version() -> str:
    """The version of nats-py."""
    return str(getattr(nats.aio.client, "__version__", "of unknown version"))
