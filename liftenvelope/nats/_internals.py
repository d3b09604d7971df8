"""Checks that nats-py has the internals that acceleration relies on."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

import nats.aio.client
from nats.aio.subscription import Subscription
from nats.protocol import parser as nats_parser

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["nats_py_version", "what_is_unknown"]

_PRIVATE: Final = ("_ps", "_subs", "_error_cb", "stats")
_PARSER_PRIVATE: Final = ("buf", "state", "needed", "reset", "parse")
_SUBSCRIPTION_PRIVATE: Final = ("_id", "_received", "_pending_queue")
_STATES: Final = ("AWAITING_CONTROL_LINE", "AWAITING_MSG_PAYLOAD")


def what_is_unknown(nc: Client) -> str | None:
    """Return the reason why this connection's parser cannot be replaced; None if it can."""
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
    """Return the version of nats-py."""
    return str(getattr(nats.aio.client, "__version__", "of unknown version"))
