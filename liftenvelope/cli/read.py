"""``liftenvelope read``: reads a stream into files or onto the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from liftenvelope._checks import MAX_INT64, as_local_path
from liftenvelope.cli._connecting.servers import with_source
from liftenvelope.cli._options.payload import bad_messages, payload_of, with_payload
from liftenvelope.cli._options.places import (
    NumberType,
    PlaceType,
    SizeType,
    StartType,
    check_folder,
    check_lines,
    check_open,
    complete_path,
    fail_cleanly,
)
from liftenvelope.cli._output.terminal import counted, harmless_json, shown

if TYPE_CHECKING:
    import pyarrow as pa


@click.command()
@click.argument("stream")
@click.option(
    "--to",
    default="-",
    show_default=True,
    metavar="PATH",
    shell_complete=complete_path,
    help="Local path: a .parquet or .ndjson file; a folder, to which every run adds files; "
    "or - for lines of JSON on standard output.",
)
@click.option(
    "--start",
    "-s",
    type=StartType("earliest", "latest", "new"),
    help="Where to start: earliest, latest (the newest message), new (after the newest message), an offset, "
    "-5 for the last five offsets of each partition, a time such as 2026-01-31T12:00, UTC, or an age such as "
    "1h.  [default: earliest; latest with --follow]",
)
@click.option(
    "--stop",
    type=PlaceType("latest"),
    help="Offset or time to stop before, or latest.  [default: the end]",
)
@click.option("--limit", "-n", type=NumberType(min=1), help="Number of rows after which to end.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=NumberType(min=0),
    help="Partition to read; repeatable.",
)
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    help="Subject of the messages to read, with the wildcards * and >; repeatable.  [default: all]",
)
@click.option("--columns", help="Names of columns, separated by commas.")
@click.option(
    "--envelope",
    default="none",
    show_default=True,
    type=click.Choice(["none", "strip", "columns"]),
    help="JetStream: strip opens envelopes, so that key, value and headers are theirs; columns also adds "
    "ack_inbox, correlation_id, ack_policy and expected_offset.",
)
@with_payload("Format of the values, whose fields become columns.")
@click.option(
    "--on-bad",
    type=click.Choice(["fail", "column"]),
    help="With --payload: end at a message that does not fit, or add bad_reason and bad_value.  "
    "[default: fail]",
)
@click.option(
    "--dead-letter", metavar="STREAM", help="With --payload: store messages that do not fit in this stream."
)
@click.option("--dead-letter-subject", metavar="SUBJECT", help="JetStream: subject of the dead letters.")
@click.option(
    "--start-row",
    default=0,
    type=NumberType(min=0),
    help="With --payload arrow, and an offset in --start: first row of that message, to go on inside it.",
)
@click.option(
    "--on-retention",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="If messages to read are gone from the beginning of the stream: end, or go on without them.",
)
@click.option("--follow", is_flag=True, help="Keep waiting for new messages; lines of JSON only.")
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON: what --to - does anyway.")
@click.option(
    "--rotate-rows", type=NumberType(min=1), help="With a folder: maximum number of rows in a file."
)
@click.option(
    "--rotate-bytes", type=SizeType(), help="With a folder: size at which a file ends, such as 1GB."
)
@with_source
def read(
    stream: str,
    source: Any,
    to: str,
    start: Any,
    follow: bool,
    limit: int | None,
    as_json: bool,
    rotate_rows: int | None,
    rotate_bytes: int | None,
    **how: Any,
) -> None:
    """Read STREAM in exact ranges of offsets.

    After a lost connection, the read reconnects and continues at the next offset.
    """
    if not to:  # Path("") is the current folder
        raise click.UsageError("--to must not be empty, got ''")
    if as_json and to != "-":
        raise click.UsageError(f"--json must be left out with --to {to}, which names the format")
    fail_cleanly(lambda: as_local_path("--to", to))
    if how["on_retention"] == "fail":
        how["on_retention"] = "raise"
    how["start"] = start if start is not None else "latest" if follow else "earliest"
    how["partitions"] = list(how["partitions"]) or None
    how["subjects"] = how["subjects"] or None
    if how["columns"] is not None:
        how["columns"] = [name.strip() for name in how["columns"].split(",")]
    how["on_bad"] = bad_messages(stream, source, how)
    how["payload"] = payload_of(how["payload"], how.pop("schema"), how.pop("message"))
    rotation = {"rotate_rows": rotate_rows, "rotate_bytes": rotate_bytes}
    rotation = {name: value for name, value in rotation.items() if value is not None}
    if follow:
        if to.endswith(".parquet") or _is_folder(to) or rotation or how.pop("stop") is not None:
            text = "--follow never ends: leave out --stop, --rotate-rows and --rotate-bytes"
            raise click.UsageError(f"{text}, and write lines of JSON")
        fail_cleanly(lambda: _print(source, stream, to, how, limit, follow=True))
    elif _is_folder(to):
        if how.pop("start_row"):
            raise click.UsageError("--start-row needs a file or -: a folder gets messages as a whole")
        if limit is not None:
            raise click.UsageError("--limit needs a file or -: a folder gets what is new in the stream")
        fail_cleanly(lambda: _archive(source, stream, to, how | rotation))
    elif rotation:
        raise click.UsageError("--rotate-rows and --rotate-bytes need a folder, such as --to orders/")
    elif to.endswith(".parquet"):
        check_folder("--to", to)
        fail_cleanly(lambda: _save(source, stream, to, how, limit))
    else:
        fail_cleanly(lambda: _print(source, stream, to, how, limit, follow=False))


def _is_folder(to: str) -> bool:
    return to.endswith(("/", os.sep)) or Path(to).is_dir()


def _archive(source: Any, stream: str, to: str, how: dict[str, Any]) -> None:
    from liftenvelope import bulk

    with bulk.ProgressBar(shown(stream)) as bar:
        done = bulk.to_parquet(source, stream, to, progress=bar, **how)
    rows, files = counted(done.rows, "row"), counted(len(done.files), "file")
    click.echo(f"{rows} in {files}, {counted(done.bytes, 'byte')}", err=True)


def _first(reader: pa.RecordBatchReader, limit: int | None) -> pa.RecordBatchReader:
    """Return a reader of the first rows of another one; of all without a limit."""
    if limit is None:
        return reader
    import pyarrow as pa

    def batches(left: int) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    return pa.RecordBatchReader.from_batches(reader.schema, batches(min(limit, MAX_INT64)))


def _save(source: Any, stream: str, to: str, how: dict[str, Any], limit: int | None) -> None:
    from liftenvelope import bulk
    from liftenvelope.bulk.files import save_parquet

    with bulk.ProgressBar(shown(stream)) as bar:
        rows = save_parquet(_first(bulk.read(source, stream, progress=bar, **how), limit), Path(to))
    click.echo(counted(rows, "row"), err=True)


def _print(
    source: Any, stream: str, to: str, how: dict[str, Any], limit: int | None, *, follow: bool
) -> None:
    from liftenvelope import bulk
    from liftenvelope.bulk.files import file_when_complete, to_lines

    check_lines("--to", to)
    check_open("--to", to, sys.__stdout__)  # main() puts another one in the place of a closed one
    check_folder("--to", to)
    reader = bulk.tail(source, stream, **how) if follow else bulk.read(source, stream, **how)
    is_direct = follow or to == "-" or not _is_replaceable(to)  # a file that is followed has no end
    # Bytes, because the terminal's text encoding need not be UTF-8, and JSON is.
    with click.open_file(to, "wb") if is_direct else file_when_complete(Path(to)) as out:
        for batch in _first(reader, limit):
            for line in to_lines(batch):
                out.write(harmless_json(line).encode() + b"\n")
            out.flush()


def _is_replaceable(to: str) -> bool:
    """Return True unless a path must be written in place.

    A device or a pipe is no file. Behind ``/dev/stdout`` and ``/dev/fd/3`` there may be a file, which another
    program has open and reads on. A file in a folder without the right to write can't be replaced.
    """
    path, full = Path(to), Path(os.path.abspath(to))
    if not path.exists():
        return True
    is_descriptor = full.is_relative_to("/dev") or full.is_relative_to("/proc")
    if not path.is_file() or is_descriptor or _is_stdout(path):
        return False
    return os.access(Path(os.path.realpath(to)).parent, os.W_OK)


def _is_stdout(path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:  # closed
        return False
