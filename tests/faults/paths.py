"""All paths by the names that plans give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.faults import bulk_reads
from tests.faults.archive_daemons import ARCHIVE_DAEMON, ARCHIVE_S3
from tests.faults.archives import ARCHIVE
from tests.faults.bulk_writes import BULK_PATHS
from tests.faults.groups import GROUP
from tests.faults.plan import Plan
from tests.faults.publishing import ACK_INBOX, CLIENT, JETSTREAM, PUBLISHER
from tests.faults.running import Path, Result, Run, run_plan
from tests.faults.tables import TABLE_PATHS

__all__ = ["WORK", "run_any"]

WORK: Final[dict[str, Path]] = {
    "ack-inbox": ACK_INBOX,
    "envelope-publisher": PUBLISHER,
    "client-publish": CLIENT,
    "jetstream-publish": JETSTREAM,
    **BULK_PATHS,
    "group": GROUP,
    "archive": ARCHIVE,
    "archive-daemon": ARCHIVE_DAEMON,
    "archive-s3": ARCHIVE_S3,
    **TABLE_PATHS,
}


def run_any(plan: Plan, started: Callable[[Run], None] = lambda _: None) -> Result:
    """Carry out a plan.

    Args:
        plan: The plan.
        started: Called with a run before it begins, for who wants to show its progress.
    """
    if plan.path == "bulk-read":
        return bulk_reads.run_plan(plan)
    if plan.path == "spark-sink":
        from tests.faults import spark_sinks

        return spark_sinks.run_plan(plan, started)
    return run_plan(plan, WORK[plan.path], started)
