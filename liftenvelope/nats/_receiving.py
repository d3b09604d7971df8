"""Messages straight from the socket to their handler, past nats-py's queues: what ``accelerate`` puts in.

Like ``_link``, this knows nats-py's inside, here the reading side of it: its parser (``nc._ps``), its table
of subscriptions and their counters. A :class:`DirectSubscription` is an ordinary nats-py subscription, and
works as one. While the connection is accelerated, its messages take a shorter way to the same handler.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import nats.aio.client
from nats.aio.subscription import Subscription
from nats.protocol import parser as nats_parser

from liftenvelope._backend import frames
from liftenvelope.nats._link import Link

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

#: Far more than a server can be made to send. What is longer is left to nats-py.
_MAX_MESSAGE: Final = 1 << 30
_CRLF: Final = 2
_PRIVATE: Final = ("_ps", "_subs", "_error_cb", "stats")
_PARSER_PRIVATE: Final = ("buf", "state", "needed", "reset", "parse")
_SUBSCRIPTION_PRIVATE: Final = ("_id", "_received", "_pending_queue")
#: The attribute of nats-py's subscription that says who reads it directly.
_MARK: Final = "_liftenvelope_direct"
_STATES: Final = ("AWAITING_CONTROL_LINE", "AWAITING_MSG_PAYLOAD")


class DirectSubscription:
    """A subscription with a plain function for a handler. Made by :func:`subscribe_direct`.

    Attributes:
        subscription: nats-py's own.
        handler: Who gets the messages.
        payloads: Whether the handler wants their payloads alone.
    """

    subscription: Subscription

    def __init__(self, nc: Client, handler: Callable[[list[Any]], None], payloads: bool) -> None:
        self._nc: Any = nc
        self.handler = handler
        self.payloads = payloads

    async def unsubscribe(self) -> None:
        """End it, if the connection has not ended it already. No message is handled after the call."""
        self.handler = _nobody  # a connection that drains goes on to deliver
        parser = getattr(self._nc, "_ps", None)
        if isinstance(parser, DirectParser):
            parser.dismiss(self)
        await Link(self._nc).unsubscribe(self.subscription)

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
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    callback = direct.on_payload if payloads else direct.on_message
    direct.subscription = await Link(nc).subscribe(subject, callback)
    if task is not None and task.cancelling() > before:  # nats-py's inner flush swallows it
        await direct.unsubscribe()
        raise asyncio.CancelledError
    return _read_directly(nc, direct)


def read_directly(
    nc: Client,
    subscription: Subscription,
    handler: Callable[[list[Any]], None],
    *,
    payloads: bool = False,
) -> DirectSubscription:
    """Have a subscription of our own read directly while the connection is accelerated, and only then.

    For those that have their own way otherwise: there, nats-py goes on to deliver as the subscription says.

    Args:
        nc: Its connection.
        subscription: One without limits on what is pending or on how many messages it gets.
        handler: As for :func:`subscribe_direct`.
        payloads: As for :func:`subscribe_direct`.
    """
    direct = DirectSubscription(nc, handler, payloads)
    direct.subscription = subscription
    return _read_directly(nc, direct)


def _read_directly(nc: Client, direct: DirectSubscription) -> DirectSubscription:
    setattr(direct.subscription, _MARK, direct)  # where accelerate() finds it
    parser = getattr(nc, "_ps", None)
    if isinstance(parser, DirectParser):
        parser.adopt(direct)
    return direct


def header_block(headers: Mapping[str, str] | None) -> bytes | None:
    r"""Return the headers as bytes again, as far as nats-py has kept what was in them.

    It does not keep repeated names, nor what tells a header ``Status`` from a status of the server.

    >>> header_block({"Status": "408", "Description": "Request Timeout", "A": "b"})
    b'NATS/1.0 408 Request Timeout\r\nA: b\r\n\r\n'
    """
    if headers is None:
        return None
    left = dict(headers)
    words = ["NATS/1.0", left.pop("Status", ""), left.pop("Description", "")]
    if "\n" in words[2]:  # nats-py takes the next line for the text of a status that has none
        name, _, value = words[2].strip().partition(": ")
        words[2] = ""
        left.setdefault(name, value)
    lines = [" ".join(filter(None, words)), *(f"{name}: {value}" for name, value in left.items())]
    return "\r\n".join([*lines, "", ""]).encode()


class DirectParser:
    """Stands in the place of a connection's parser, which still sees all but what goes to handlers directly.

    Args:
        nc: The connection.

    Attributes:
        users: How many have asked for it and not given it back.
    """

    def __init__(self, nc: Client) -> None:
        self.nc: Any = nc
        self.users = 0
        self._parser: Any = self.nc._ps
        self._walker = frames.NatsWalker(_MAX_MESSAGE)
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
            if self._left:  # a handler has had it leave: a message may have come in part
                await self._parser.parse(self._walker.walk()[1])
        finally:
            self._parsing -= 1

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
                self._walker.open(sub._id, direct.payloads)
            else:
                self._waiting.append(direct)

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
