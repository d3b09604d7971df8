"""``liftenvelope restore``: publishes an archive of Parquet files into a stream."""

from __future__ import annotations

from typing import Any

import click

from liftenvelope.cli._places import fail_cleanly
from liftenvelope.cli._servers import json_option, with_source
from liftenvelope.cli._terminal import report, shown


@click.command()
@click.argument("archive")
@click.argument("stream")
@click.option(
    "--archived-stream", metavar="NAME", help="Name of the stream in the archive.  [default: STREAM]"
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Partition of the archive.",
)
@click.option("--subject", help="Subject of all messages.  [default: those of the archive]")
@click.option(
    "--payload",
    default="raw",
    show_default=True,
    metavar="FORMAT",
    help="Format of an archive with typed columns: raw, json, msgpack, arrow, or a JSON object such as "
    """'{"format": "avro", "schema": {...}}'.""",
)
@click.option("--verify", is_flag=True, help="Read the stream back, and compare each message with its row.")
@click.option("--dry-run", is_flag=True, help="Read the archive and encode its rows, but publish nothing.")
@json_option
@with_source
def restore(
    archive: str,
    stream: str,
    source: Any,
    payload: str,
    dry_run: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Publish ARCHIVE, a folder or a URL such as s3://bucket/orders, to STREAM of JetStream.

    STREAM must exist, and be empty or hold the beginning of an earlier restore, which then goes on.
    """

    def work() -> None:
        from liftenvelope import bulk
        from liftenvelope.payload import described_text

        if dry_run and how["verify"]:
            raise click.UsageError("--verify must be left out with --dry-run, which publishes nothing")
        how["payload"] = described_text(payload)
        with bulk.ProgressBar(shown(stream)) as bar:
            done = bulk.restore(archive, source, stream, dry_run=dry_run, progress=bar, **how)
        report(_sentence(done, dry_run), as_json, stream=stream, dry_run=dry_run, **_facts(done))

    fail_cleanly(work)


def _facts(done: Any) -> dict[str, object]:
    return {name: getattr(done, name) for name in ("rows", "skipped", "verified", "keeps_offsets")}


def _sentence(done: Any, dry_run: bool) -> str:
    verb = "to publish" if dry_run else "published"
    verified = f", {done.verified:,} verified" if done.verified else ""
    offsets = "each keeps its offset" if done.keeps_offsets else "offsets differ from the archive"
    return f"{done.rows:,} messages {verb}, {done.skipped:,} stored before{verified}; {offsets}"
