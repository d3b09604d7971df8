"""``liftenvelope restore``: makes a stream of a backup, or publishes an archive of Parquet files into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

from liftenvelope.cli._connecting.servers import json_option, with_source
from liftenvelope.cli._options.places import NumberType, complete_path, fail_cleanly
from liftenvelope.cli._output.terminal import counted, report, shown

#: Options for archives alone, with their defaults.
_DEFAULTS: Final = {
    "archived_stream": None,
    "partition": 0,
    "subject": None,
    "payload": "raw",
    "verify": False,
}


@click.command()
@click.argument("archive", metavar="FOLDER", shell_complete=complete_path)
@click.argument("stream")
@click.option(
    "--archived-stream", metavar="NAME", help="Name of the stream in the archive.  [default: STREAM]"
)
@click.option(
    "--partition",
    type=NumberType(min=0),
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
@click.option(
    "--config",
    metavar="JSON",
    help="For a backup: settings instead of those of the backup, such as '{\"num_replicas\": 1}'.",
)
@click.option("--dry-run", is_flag=True, help="Read the backup or archive and check it, but store nothing.")
@json_option
@with_source
def restore(
    archive: str,
    stream: str,
    source: Any,
    config: str | None,
    dry_run: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Restore STREAM of JetStream from FOLDER, a backup or an archive.

    A backup is a folder of `liftenvelope backup` or `nats backup stream`. STREAM must not exist, and gets the
    sequences, timestamps and consumers of the backup.

    An archive has Parquet files, in a folder or at a URL such as s3://bucket/orders. They are published.
    STREAM must exist, and be empty or hold the beginning of an earlier restore, which then goes on.
    """

    def work() -> None:
        from liftenvelope import bulk

        if "://" not in archive and not Path(archive).is_dir():
            raise click.UsageError(f"FOLDER must be a folder that exists, or a URL, got {archive!r}")
        one = _from_backup if bulk.is_backup(archive) else _from_archive
        sentence, facts = one(archive, source, stream, config=config, dry_run=dry_run, **how)
        report(sentence, as_json, stream=stream, dry_run=dry_run, **facts)

    fail_cleanly(work)


def _from_backup(
    folder: str, source: Any, stream: str, *, config: str | None, dry_run: bool, access: Any, **others: Any
) -> tuple[str, dict[str, object]]:
    from liftenvelope import bulk

    given = [name for name, value in others.items() if value != _DEFAULTS[name]]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise click.UsageError(f"{option} must be left out with a backup: it is for an archive")
    changes = None if config is None else _settings(config)
    with bulk.ProgressBar(shown(stream)) as bar:
        done = bulk.restore_backup(
            folder, source, stream, config=changes, dry_run=dry_run, progress=bar, access=access
        )
    verb = "to restore" if dry_run else "restored"
    missing = (
        f"; {done.missing:,} of the backup are missing: limits have removed them" if done.missing else ""
    )
    names = ("messages", "missing", "consumers", "oldest", "end")
    facts = {name: getattr(done, name) for name in names}
    held = f"{counted(done.messages, 'message')} and {counted(done.consumers, 'consumer')}"
    return f"{held} {verb}{missing}", facts


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise click.UsageError(f"--config must be a JSON object, got {text!r:.100}: {exc}") from exc
    if not isinstance(found, dict):
        raise click.UsageError(f"--config must be a JSON object, got {text!r:.100}")
    return found


def _from_archive(
    archive: str, source: Any, stream: str, *, payload: str, config: str | None, dry_run: bool, **how: Any
) -> tuple[str, dict[str, object]]:
    from liftenvelope import bulk
    from liftenvelope.payload import described_text

    if config is not None:
        raise click.UsageError("--config must be left out with an archive: the stream exists")
    if dry_run and how["verify"]:
        raise click.UsageError("--verify must be left out with --dry-run, which publishes nothing")
    how["payload"] = described_text(payload)
    with bulk.ProgressBar(shown(stream)) as bar:
        done = bulk.restore(archive, source, stream, dry_run=dry_run, progress=bar, **how)
    return _sentence(done, dry_run), _facts(done)


def _facts(done: Any) -> dict[str, object]:
    return {name: getattr(done, name) for name in ("rows", "skipped", "verified", "keeps_offsets")}


def _sentence(done: Any, dry_run: bool) -> str:
    verb = "to publish" if dry_run else "published"
    verified = f", {done.verified:,} verified" if done.verified else ""
    offsets = "each keeps its offset" if done.keeps_offsets else "offsets differ from the archive"
    return f"{counted(done.rows, 'message')} {verb}, {done.skipped:,} stored before{verified}; {offsets}"
