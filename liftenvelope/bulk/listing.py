"""List the streams of a server."""

from __future__ import annotations

from typing import Protocol

from liftenvelope.bulk._jetstream.source import JetStreamSource
from liftenvelope.bulk._liftbridge.brokers import Brokers
from liftenvelope.bulk.access import Access, ServerKind, Source, find_target

__all__ = ["Lister", "open_lister"]


class Lister(Protocol):
    """Source that can list all streams of its servers."""

    def streams(self) -> list[str]:
        """Return the sorted names of all streams, without Liftbridge's internal streams.

        Shortly after its start, a Liftbridge server may not yet know all of its streams.

        Raises:
            LiftEnvelopeError: No server could be reached, or the servers refused the request.
        """
        ...

    def close(self) -> None:
        """Close the connection. The next call reconnects."""
        ...


def open_lister(source: Source, access: Access | None = None) -> Lister:
    """Return a lister for the streams of the given servers.

    Args:
        source: As for :func:`liftenvelope.bulk.read`.
        access: As for :func:`liftenvelope.bulk.read`.

    Raises:
        UsageError: An argument is invalid.
    """
    target = find_target(source, access)
    # For JetStream, the source of any one stream can list all streams; the name "all" is a placeholder.
    return Brokers(target) if target.kind is ServerKind.LIFTBRIDGE else JetStreamSource(target, "all")
