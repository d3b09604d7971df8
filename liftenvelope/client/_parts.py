"""Parts of a client that its consumers and checkpointers work with."""

from __future__ import annotations

from dataclasses import dataclass

from liftenvelope.client._cursors import Cursors
from liftenvelope.client._reading.subscribing import Subscriptions
from liftenvelope.client._streams import Streams
from liftenvelope.client.core import ClientContext

__all__ = ["ClientParts"]


@dataclass(frozen=True, slots=True)
class ClientParts:
    """Parts of a client that its consumers and checkpointers work with.

    Attributes:
        context: State that the parts share: options, cluster, open resources.
        streams: State of partitions.
        cursors: Stored offsets.
        subscriptions: Reads of partitions for members of a group.
    """

    context: ClientContext
    streams: Streams
    cursors: Cursors
    subscriptions: Subscriptions
