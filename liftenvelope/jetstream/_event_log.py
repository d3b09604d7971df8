"""Log lines of consumptions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from liftenvelope._logs import event_logger, log_event
from liftenvelope._secrets import without_secrets
from liftenvelope.jetstream._events import (
    Disconnected,
    LeadershipChanged,
    LimitExceeded,
    MessageTooLarge,
    MissedHeartbeats,
    NoResponders,
    OrderedReset,
    Pinned,
    PinNotReleased,
    PullEvent,
    Reconnected,
    ServerShutdown,
    UnknownStatus,
    Unpinned,
)

__all__ = ["log_pull_event", "log_unsent_ack"]

_log: Final = event_logger("jetstream")
_LINES: Final[Mapping[type, tuple[int, str]]] = {
    MissedHeartbeats: (
        logging.WARNING,
        "%(consumer)s: the server is silent for %(silent_for).1f s, pulling again%(refusal)s",
    ),
    LimitExceeded: (logging.WARNING, "%(consumer)s: the server refused a pull: %(description)s"),
    MessageTooLarge: (
        logging.WARNING,
        "%(consumer)s: the next message is larger than max_bytes, %(max_bytes)d: nothing is delivered",
    ),
    LeadershipChanged: (logging.INFO, "%(consumer)s: another server leads the consumer, pulling again"),
    ServerShutdown: (logging.INFO, "%(consumer)s: the server is shutting down"),
    NoResponders: (logging.WARNING, "%(consumer)s: nothing answers a pull, pulling again later"),
    Disconnected: (logging.WARNING, "%(consumer)s: the connection is lost, pulling again when it is back"),
    Reconnected: (logging.WARNING, "%(consumer)s: the connection is back, pulling again"),
    Pinned: (logging.INFO, "%(consumer)s: pinned with %(pin_id)s"),
    Unpinned: (logging.INFO, "%(consumer)s: lost the pin %(pin_id)s"),
    PinNotReleased: (
        logging.WARNING,
        "%(consumer)s: could not release the pin %(pin_id)s, which ends by itself: %(error)s",
    ),
    UnknownStatus: (
        logging.WARNING,
        "%(consumer)s: the server sent an unknown status: %(code)d %(description)s",
    ),
    OrderedReset: (
        logging.INFO,
        "%(consumer)s: made anew, reading on from sequence %(sequence)d: %(reason)s",
    ),
}


def log_pull_event(event: PullEvent, consumer: str) -> None:
    """Log an event of a consumption.

    Args:
        event: The event.
        consumer: Name of the consumer with its stream, such as ``ORDERS/packing``.
    """
    log_event(_log, _LINES, event, consumer=consumer)


def log_unsent_ack(reply: str, error: BaseException) -> None:
    """Log an ack that nats-py refused after ``ack`` had returned.

    Args:
        reply: Reply subject of the message.
        error: Error of nats-py.
    """
    told = {"reply": reply, "error": without_secrets(error)}
    _log.warning("the ack to %(reply)s was not sent: %(error)s", told, extra=told)
