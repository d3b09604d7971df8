"""Fast receiving on a connection that you already have."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final, Self

from liftenvelope._checks import as_int64
from liftenvelope.errors import UsageError
from liftenvelope.nats._receiving import DirectParser, nats_py_version, parser_of, what_is_unknown

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Acceleration", "accelerate"]

#: Default of the longest message in bytes to accept.
MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024


class Acceleration:
    """The acceleration of one connection, made by :func:`accelerate`. A context manager, too."""

    def __init__(self, parser: DirectParser | None) -> None:
        self._parser = parser

    @property
    def active(self) -> bool:
        """Whether it is in effect: False when this nats-py is not known, and after :meth:`restore`."""
        return self._parser is not None

    def restore(self) -> None:
        """Give the connection its own parser back, at any moment and without losing a message.

        If the connection was accelerated several times, the last call does. May be called again.
        """
        parser, self._parser = self._parser, None
        if parser is not None:
            parser.users -= 1
            if not parser.users:
                parser.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def accelerate(nc: Client, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Acceleration:
    """Have what liftenvelope subscribes to on this connection read without nats-py's parser and queues.

    That is several times as fast. Only messages of liftenvelope's own subscriptions are read in this way,
    those of an :class:`AckInbox` and of JetStream consumers, whether they were made before or after the call.
    All else goes to nats-py byte for byte as before, and behaves as before: your subscriptions with their
    limits and callbacks, requests, statistics, pings, errors, reconnecting and draining.

    Args:
        nc: A nats-py client, connected or not.
        max_message_bytes: Longest message in bytes to accept from the server, headers included. Default
            128 MiB: twice what NATS carries, for what servers add. A longer one, or a line of more than
            64 KiB, ends the connection with nats-py's ProtocolError, and nats-py makes another. nats-py alone
            has no such limit. If the connection is accelerated already, the limit of the first call stays.

    Returns:
        The handle that takes it back. It may be dropped: the connection then stays accelerated.

    Warns:
        RuntimeWarning: This version of nats-py has another inside than those that are known. The connection
            works as before, and is not accelerated.

    Raises:
        UsageError: ``max_message_bytes`` is not a positive int.

    Example::

        accelerate(nc)
        async with AckInbox(nc) as inbox:
            await inbox.publish("sensors.temperature", b"21.5")
    """
    limit = as_int64("max_message_bytes", max_message_bytes)
    if limit < 1:
        raise UsageError(f"max_message_bytes must be at least 1, got {limit}")
    if (current := parser_of(nc)) is None:
        if (unknown := what_is_unknown(nc)) is not None:
            message = f"nats-py {nats_py_version()} is not known to liftenvelope: {unknown}; not accelerated"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            return Acceleration(None)
        current = DirectParser(nc, limit)
        current.install()
    current.users += 1
    return Acceleration(current)
