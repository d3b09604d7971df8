"""``subscribe --no-follow`` on a stream of three servers, of which two have only a part of it yet."""

from __future__ import annotations

import os
from pathlib import Path

from liftenvelope import bulk
from tests.integration.bulk_streams import publish
from tests.integration.cli.commands import lines_of, text_of
from tests.integration.jetstream_cluster import make_replicated, three_servers

COUNT = 3_000
#: Restores, with two reads after each. A consumer is placed at random, so only some of them lag.
ROUNDS = 6


def test_reads_are_whole_while_the_replicas_are_filled(name: str, tmp_path: Path) -> None:
    with three_servers() as servers:
        url = servers["n1"].url
        make_replicated(url, name)
        publish(url, [(f"{name}.{i % 3}", os.urandom(10_000), None) for i in range(COUNT)])
        bulk.backup(url, name, tmp_path)
        for _ in range(ROUNDS):
            text_of("stream", "rm", name, "--yes", "--url", url)
            bulk.restore_backup(tmp_path, url)
            for subject in ("1", "2"):
                filtered = ("--subject", f"{name}.{subject}")
                found = lines_of("tail", name, "--start", "earliest", "--no-follow", *filtered, "--url", url)
                assert [one["sequence"] for one in found] == [
                    i + 1 for i in range(COUNT) if i % 3 == int(subject)
                ]
