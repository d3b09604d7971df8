"""Fast receiving on an existing connection."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final, Self

from liftenvelope._checks import MAX_INT64, as_count
from liftenvelope.nats._internals import nats_py_version, what_is_unknown
from liftenvelope.nats.receiving import DirectParser, parser_of

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Acceleration", "accelerate"]

#: Default of the maximum message size, in bytes.
MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024


class Acceleration:
    """Handle of an accelerated connection, returned by :func:`accelerate`. Also a context manager."""

    def __init__(self, parser: DirectParser | None) -> None:
        self._parser = parser

    @property
    def active(self) -> bool:
        """True while this handle keeps the connection accelerated.

        False if this version of nats-py is unknown, and after :meth:`restore`.
        """
        return self._parser is not None

    def restore(self) -> None:
        """Restore the connection's own parser. This is possible at any time and loses no message.

        If the connection was accelerated several times, the last ``restore`` takes effect. Idempotent.
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
    """Read the messages of liftenvelope's own subscriptions without nats-py's parser and queues.

    Receiving becomes several times faster. The call affects only the subscriptions of an :class:`AckInbox`
    and of JetStream consumers, created before or after the call. Everything else reaches nats-py byte for
    byte and behaves as before: the user's subscriptions with their limits and callbacks, requests,
    statistics, pings, errors, reconnecting and draining.

    Args:
        nc: A nats-py client, connected or not.
        max_message_bytes: Maximum size in bytes of a message from the server, headers included. Default
            128 MiB: twice the maximum of NATS, to allow for additions by servers. A larger message, or a line
            of more than 64 KiB, ends the connection with nats-py's ProtocolError, and nats-py reconnects.
            nats-py alone has no such limit. On a connection that is already accelerated, the limit of the
            first call stays.

    Returns:
        Handle to undo the acceleration. If the handle is dropped, the connection stays accelerated.

    Warns:
        RuntimeWarning: The internals of this nats-py version are unknown. The connection works as before and
            is not accelerated.

    Raises:
        UsageError: ``max_message_bytes`` is not a positive int.

    Example::

        accelerate(nc)
        async with AckInbox(nc) as inbox:
            await inbox.publish("sensors.temperature", b"21.5")
    """
    limit = as_count("max_message_bytes", max_message_bytes, 1, MAX_INT64)
    if (current := parser_of(nc)) is None:
        if (unknown := what_is_unknown(nc)) is not None:
            message = f"nats-py {nats_py_version()} is not known to liftenvelope: {unknown}; not accelerated"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            return Acceleration(None)
        current = DirectParser(nc, limit)
        current.install()
    current.users += 1
    return Acceleration(current)
