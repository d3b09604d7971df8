"""Log lines of the client's events."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from liftenvelope._logs import event_logger, log_event
from liftenvelope.client._events import (
    CheckpointFailed,
    ClientEvent,
    EventHandler,
    GroupCoordinatorReported,
    GroupLeaveFailed,
    GroupMemberExpired,
    GroupPartitionFenced,
    SubscriptionLost,
    SubscriptionResumed,
    warn,
    warns_of,
)

__all__ = ["logged"]

_log: Final = event_logger("client")
_LINES: Final[Mapping[type, tuple[int, str]]] = {
    SubscriptionLost: (
        logging.WARNING,
        "%(stream)s[%(partition)d]: the subscription is lost, resubscribing at %(position)s: %(error)s",
    ),
    SubscriptionResumed: (
        logging.WARNING,
        "%(stream)s[%(partition)d]: the subscription is back at %(position)s, from %(address)s",
    ),
    CheckpointFailed: (
        logging.WARNING,
        "%(stream)s[%(partition)d]: cursor %(cursor_id)s could not be set to %(offset)d: %(error)s",
    ),
    GroupMemberExpired: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s is no longer a member, and joins again",
    ),
    GroupPartitionFenced: (
        logging.INFO,
        "group %(group)s: another consumer reads %(stream)s[%(partition)d] of %(consumer_id)s, retrying",
    ),
    GroupCoordinatorReported: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s reported the coordinator %(coordinator)s as unreachable",
    ),
    GroupLeaveFailed: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s could not leave, and expires instead: %(error)s",
    ),
}


def logged(handler: EventHandler) -> EventHandler:
    """Return a handler that also logs events. What the default handler warns of is not logged as well."""

    def handle(event: ClientEvent) -> object:
        if handler is not warn or not warns_of(event):
            log_event(_log, _LINES, event)
        return handler(event)

    return handle
