"""Parts of a client that its consumers and checkpointers work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftenvelope.client.core import ClientContext
from liftenvelope.client.cursors import Cursors
from liftenvelope.client.forwarding import forward
from liftenvelope.client.streams import Streams
from liftenvelope.client.subscribing import Subscriptions

if TYPE_CHECKING:
    from liftenvelope.client.cluster import Cluster
    from liftenvelope.client.core import Closeable
    from liftenvelope.client.options import Options

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

    # The names below are those under which consumers and checkpointers look for the parts' methods today.

    _call = forward("context", ClientContext.call)
    _deadline = forward("context", ClientContext.deadline)
    _raise_cursor = forward("cursors", Cursors.advance)
    _write_cursor = forward("cursors", Cursors.write)
    _subscribe_for_group = forward("subscriptions", Subscriptions.subscribe_for_group)
    fetch_cursor = forward("cursors", Cursors.fetch_cursor)
    reset_cursor = forward("cursors", Cursors.reset_cursor)
    fetch_partition_metadata = forward("streams", Streams.fetch_partition_metadata)

    @property
    def _options(self) -> Options:
        return self.context.options

    @property
    def _cluster(self) -> Cluster:
        return self.context.cluster

    @property
    def _open(self) -> set[Closeable]:
        return self.context.open_resources
