"""Which server has every message of a stream with several copies. No I/O.

A server places each consumer at random on one of the copies, also on one that lags: for a second after a
replica was added, and longer after a restore (measured on nats-server 2.15.1). What such a consumer tells of
the stream is old: it has fewer messages, or none. The leader's copy has every message that was acked. So a
consumer whose number counts is replaced if it is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from liftenvelope._checks import as_text
from liftenvelope.errors import TransportError

__all__ = ["MOST_PLACES", "may_lag", "not_on_leader", "server_of"]

#: Consumers to create before giving up on getting one on the leader. Of five copies, 20 consumers at random
#: miss the leader once in 90 times.
MOST_PLACES: Final = 20


def server_of(info: Mapping[str, Any]) -> str:
    """Return the name of the server that leads a stream or has a consumer, from its info; "" if not told.

    Raises:
        TypeError, AttributeError: The info is not as a server sends it.
    """
    return as_text("leader", (info.get("cluster") or {}).get("leader") or "")


def may_lag(server: str, leader: str) -> bool:
    """Return True if a server's copy of a stream may lack messages that were acked.

    Args:
        server: Name of the server of a consumer, as from :func:`server_of`.
        leader: Name of the stream's leader, as from :func:`server_of`.
    """
    return server != leader and "" not in (server, leader)


def not_on_leader(stream: str, leader: str) -> TransportError:
    """Return the error for ``MOST_PLACES`` consumers of which none was placed on the leader."""
    return TransportError(f"{stream}: no consumer of {MOST_PLACES} came to the leader {leader!r}")
