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

__all__ = ["LeaderSearch", "server_of"]

#: Consumers to create before the leader is asked for again, which may be another one by then, and in all. The
#: server chooses at random: of ten copies, 100 consumers miss the leader once in 37,000 times.
_ROUND: Final = 10
_MOST: Final = 100


def server_of(info: Mapping[str, Any]) -> str:
    """Return the name of the server that leads a stream or has a consumer, from its info; "" if not told.

    Raises:
        TypeError, AttributeError: The info is not as a server sends it.
    """
    return as_text("leader", (info.get("cluster") or {}).get("leader") or "")


class LeaderSearch:
    """Decides whether a new consumer is on the leader of its stream, or must be replaced by another one.

    Args:
        stream: Name of the stream, for the error.

    Example:
        >>> search = LeaderSearch("orders")
        >>> search.needs_leader
        True
        >>> search.leader = "n2"
        >>> [search.accepts(server) for server in ("n1", "n2")]
        [False, True]
    """

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._tries = 0
        #: Name of the stream's leader, as from :func:`server_of`.
        self.leader = ""

    @property
    def needs_leader(self) -> bool:
        """True if the leader must be asked for, and set, before the next consumer is made."""
        return self._tries % _ROUND == 0

    def accepts(self, server: str) -> bool:
        """Return True if the consumer's copy has all messages, False if the consumer must be replaced.

        Args:
            server: Name of the consumer's server, as from :func:`server_of`.

        Raises:
            TransportError: So many consumers were made that another one would be no different.
        """
        if server == self.leader or "" in (server, self.leader):  # without a cluster no name is told
            return True
        self._tries += 1
        if self._tries == _MOST:
            text = f"{self._stream}: no consumer of {_MOST} came to the leader {self.leader!r}"
            raise TransportError(text)
        return False
