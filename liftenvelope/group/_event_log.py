"""Log lines of groups: events, generations and leases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from liftenvelope._logs import event_logger, log_event
from liftenvelope.group.events import (
    AssignorFailed,
    CommitFailed,
    ControllerLost,
    GroupEvent,
    GroupEventHandler,
    GroupTaken,
    LeaseLost,
    LeaveFailed,
    MemberExpired,
    MemberFenced,
    PartitionRefused,
    PartitionUnknown,
    PartitionUnreadable,
    warn,
)

__all__ = ["log", "logged"]

log: Final = event_logger("group")
#: Events for which the default handler issues a Python warning.
_WARNED: Final = (AssignorFailed, PartitionUnknown)
_LINES: Final[Mapping[type, tuple[int, str]]] = {
    AssignorFailed: (
        logging.WARNING,
        "group %(group)s: the assignor %(assignor)s failed, 'sticky' was used instead: %(error)s",
    ),
    LeaseLost: (
        logging.WARNING,
        "coordinator %(coordinator_id)s: the lease is lost to another coordinator of this id",
    ),
    GroupTaken: (
        logging.INFO,
        "group %(group)s: coordinator %(coordinator_id)s took it over from %(before)s",
    ),
    MemberExpired: (logging.WARNING, "group %(group)s: removed the silent member %(consumer_id)s"),
    ControllerLost: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s can't reach the controller, retrying: %(error)s",
    ),
    MemberFenced: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s lost its membership and partitions, registering again: %(error)s",
    ),
    CommitFailed: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s could not commit, retrying: %(error)s",
    ),
    LeaveFailed: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s could not leave, and expires instead: %(error)s",
    ),
    PartitionRefused: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s can't read %(topic)s[%(partition)d], retrying: %(error)s",
    ),
    PartitionUnknown: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s was assigned %(topic)s[%(partition)d], which it does not know",
    ),
    PartitionUnreadable: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s still can't read %(topic)s[%(partition)d], retrying: %(error)s",
    ),
}
#: Lines of events without an error.
_WITHOUT_ERROR: Final[Mapping[type, tuple[int, str]]] = {
    MemberFenced: (
        logging.WARNING,
        "group %(group)s: %(consumer_id)s lost its membership and partitions, registering again: "
        "its session has ended",
    ),
}


def logged(handler: GroupEventHandler) -> GroupEventHandler:
    """Return a handler that also logs events. What the default handler warns of is not logged as well.

    An exception of the given handler goes to the loop's exception handler. It must not end a task, such as
    the one that keeps a lease.
    """

    def handle(event: GroupEvent) -> None:
        if handler is not warn or not isinstance(event, _WARNED):
            log_event(log, _LINES if getattr(event, "error", event) else _WITHOUT_ERROR, event)
        try:
            handler(event)
        except Exception as exc:  # noqa: BLE001 - of the user's function
            what = getattr(handler, "__qualname__", repr(handler))
            context = {"message": f"on_event {what} failed for {event}", "exception": exc}
            asyncio.get_running_loop().call_exception_handler(context)

    return handle
