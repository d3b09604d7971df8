"""Parts of a client that its consumers and checkpointers work with."""

from __future__ import annotations

from dataclasses import dataclass

from liftenvelope.client.core import ClientContext
from liftenvelope.client.cursors import Cursors
from liftenvelope.client.streams import Streams
from liftenvelope.client.subscribing import Subscriptions

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
