"""Which streams there are."""

from __future__ import annotations

from typing import Protocol

from liftenvelope.bulk._brokers import Brokers
from liftenvelope.bulk._jetstream import JetStreamSource
from liftenvelope.bulk.access import Access, Kind, Source, find_target

__all__ = ["Lister", "open_lister"]


class Lister(Protocol):
    """What can be asked for the streams that there are."""

    def streams(self) -> list[str]:
        """Return the names of all streams, in order; of Liftbridge without those of the servers' own.

        Right after its start a server of Liftbridge may not yet know all of its streams.

        Raises:
            LiftEnvelopeError: The servers can't be asked.
        """
        ...

    def close(self) -> None:
        """Close the connection. It is made again when it is needed."""
        ...


def open_lister(source: Source, access: Access | None = None) -> Lister:
    """Return what can be asked for the streams of servers.

    Args:
        source: As for :func:`liftenvelope.bulk.read`.
        access: Likewise.

    Raises:
        UsageError: An argument makes no sense.
    """
    target = find_target(source, access)
    # Of JetStream the source of any stream can be asked for all.
    return Brokers(target) if target.kind is Kind.LIFTBRIDGE else JetStreamSource(target, "all")
