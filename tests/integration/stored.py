"""Read the messages of a Liftbridge stream, even after its server was killed."""

from __future__ import annotations

import liftenvelope
from liftenvelope import bulk
from liftenvelope.testing import LiftbridgeCluster
from tests.integration.conftest import wait_until


def await_stream(cluster: LiftbridgeCluster, name: str) -> None:
    """Liftbridge answers before it has found its streams again."""
    with liftenvelope.connect_blocking(cluster.addresses) as client:
        wait_until(lambda: client.fetch_metadata(streams=[name]).get_stream(name) is not None)


class Stored:
    """All that a stream has."""

    def __init__(self, cluster: LiftbridgeCluster, stream: str) -> None:
        wait_until(lambda: self._is_shown(cluster, stream))
        table = bulk.read(cluster.addresses, stream, columns=["offset", "value"]).read_all()
        self.values: list[bytes] = table["value"].to_pylist()
        #: The last one where a killed server gave an offset twice: what had no ack, and then what has.
        self.at: dict[int, bytes] = dict(zip(table["offset"].to_pylist(), self.values, strict=True))

    @staticmethod
    def _is_shown(cluster: LiftbridgeCluster, stream: str) -> bool:
        """Return True if readers see every message of the stream."""
        partition = cluster.partition_metadata(stream)
        return partition.highWatermark == partition.newestOffset
