"""Counts the messages of a stream from a sequence on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from liftenvelope.jetstream._consumer_config import AckPolicy, ConsumerConfig, DeliverPolicy
from liftenvelope.jetstream.lagging import MOST_PLACES, may_lag, not_on_leader

if TYPE_CHECKING:
    from liftenvelope.jetstream._stream import Stream
    from liftenvelope.jetstream.infos import ClusterInfo

__all__ = ["count_from"]

#: Seconds after which the server deletes a consumer that could not be deleted.
_INACTIVE: Final = 5.0


async def count_from(stream: Stream, sequence: int, subjects: Sequence[str] = ()) -> int:
    """Return the number of messages from a sequence on, as the stream's leader counts them.

    A consumer tells the number. Consumers are made until one is on the leader.

    Args:
        stream: The stream.
        sequence: First sequence to count, 1 or more.
        subjects: Only messages on these subjects; empty for all.

    Raises:
        TransportError: The server placed no consumer on the leader.
        LiftEnvelopeError: JetStream did not answer, or refused a request.
    """
    leader = _server_of((await stream.info()).cluster)
    for _ in range(MOST_PLACES):
        config = ConsumerConfig(
            name=f"count-{uuid4().hex}",
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_INACTIVE,
            filter_subjects=tuple(subjects),
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=sequence,
        )
        consumer = await stream.create_consumer(config)
        info = consumer.cached_info
        await stream.delete_consumer(consumer.name)
        if not may_lag(_server_of(info.cluster), leader):
            return info.num_pending
    raise not_on_leader(stream.name, leader)


def _server_of(cluster: ClusterInfo | None) -> str:
    return "" if cluster is None else cluster.leader
