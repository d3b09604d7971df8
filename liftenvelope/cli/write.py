"""``liftenvelope write``: publishes the rows of a file to a stream."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from liftenvelope._checks import as_local_path
from liftenvelope.cli._connecting.servers import CommandServers, json_option, named_servers, with_source
from liftenvelope.cli._connecting.termination import run_until_terminated
from liftenvelope.cli._options.payload import payload_of, with_payload
from liftenvelope.cli._options.places import (
    NumberType,
    SizeType,
    check_file,
    check_lines,
    check_open,
    complete_path,
    fail_cleanly,
)
from liftenvelope.cli._output.terminal import counted, echo_json

if TYPE_CHECKING:
    import pyarrow as pa


@click.command()
@click.argument("stream")
@click.option(
    "--from",
    "origin",
    default="-",
    show_default=True,
    metavar="PATH",
    shell_complete=complete_path,
    help="Local path: a .parquet file, a file with lines of JSON, or - for lines of JSON on standard input.",
)
@click.option("--subject", help="JetStream: subject of all rows.")
@click.option("--envelope", is_flag=True, help="JetStream: put each row into a Liftbridge envelope.")
@click.option(
    "--message-id", metavar="TEXT", help="JetStream: prefix of message ids, which store each row once."
)
@click.option(
    "--mode",
    type=click.Choice(("auto", "pipelined", "atomic", "fast")),
    default="auto",
    show_default=True,
    help="JetStream: publish rows one by one, in atomic batches of 1,000, or by fast ingest; auto: fast if "
    "the stream allows it.",
)
@with_payload(
    "Format of the values, encoded from the columns of a .parquet file that a stream does not have."
)
@click.option(
    "--pack-rows",
    type=NumberType(min=1),
    help="With --payload arrow: most rows of a message.  [default: 10,000]",
)
@click.option(
    "--pack-bytes",
    type=SizeType(),
    help="With --payload arrow: most bytes of a message, such as 512K.  [default: 1,000,000]",
)
@click.option("--partition", type=NumberType(min=0), help="Liftbridge: partition of all rows.")
@click.option(
    "--create",
    is_flag=True,
    help="Create STREAM if it does not exist. Its subject is --subject or its own name; JetStream: all rows "
    "get it.",
)
@json_option
@click.pass_context
@with_source
def write(
    context: click.Context,
    stream: str,
    source: Any,
    origin: str,
    create: bool,
    as_json: bool,
    pack_rows: int | None,
    pack_bytes: int | None,
    **how: Any,
) -> None:
    """Publish rows to STREAM in order and wait for all acks."""
    packing = {"pack_rows": pack_rows, "pack_bytes": pack_bytes}
    how |= {name: value for name, value in packing.items() if value is not None}
    how["payload"] = payload_of(how["payload"], how.pop("schema"), how.pop("message"))
    if create:
        servers = named_servers(context.params["url"], context.params["context"])
        subject = how["subject"] or stream
        if servers.is_jetstream:
            how["subject"] = subject
        fail_cleanly(lambda: run_until_terminated(_create(servers, stream, subject)))
    fail_cleanly(lambda: _write(source, stream, origin, how, as_json))


async def _create(servers: CommandServers, stream: str, subject: str) -> None:
    """Create a stream with the servers' defaults; keep one that exists."""
    from liftenvelope.errors import StreamExistsError, StreamNotFoundError

    if servers.is_jetstream:
        from liftenvelope.jetstream import StreamConfig

        async with servers.jetstream() as js:
            try:
                await js.stream(stream)
            except StreamNotFoundError:
                await js.create_stream(StreamConfig(name=stream, subjects=(subject,)))
    else:
        async with servers.liftbridge() as client:
            with suppress(StreamExistsError):
                await client.create_stream(subject, stream)


def _write(source: Any, stream: str, origin: str, how: dict[str, Any], as_json: bool) -> None:
    path = as_local_path("--from", origin)
    interrupt = _Interrupt()
    from liftenvelope import bulk
    from liftenvelope.bulk.files import from_lines, open_parquet

    if origin.endswith(".parquet"):
        check_file("--from", origin)
        done = bulk.write(source, stream, open_parquet(path), **how)
    elif how["payload"] != "raw":
        raise click.UsageError(f"--payload needs --from with a .parquet file, got {origin!r}")
    else:
        check_lines("--from", origin)
        check_open("--from", origin, sys.stdin)
        check_file("--from", origin, or_input=True)
        with click.open_file(origin, "rb") as lines:
            reader = from_lines(lines)
            rows = reader.from_batches(reader.schema, interrupt.until(reader))
            with interrupt.handled():
                done = bulk.write(source, stream, rows, **how)
    if as_json:
        echo_json({"stream": stream, "acked": done.acked, "duplicates": done.duplicates})
    else:
        click.echo(f"{counted(done.acked, 'row')} stored, {done.duplicates:,} of them before", err=True)
    if interrupt.came:
        raise KeyboardInterrupt


class _Interrupt:
    """Handles Ctrl-C while rows are written: no more rows are taken, and those sent are counted.

    A second Ctrl-C ends the wait for their acks.
    """

    def __init__(self) -> None:
        self.came = False
        self._waits = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle Ctrl-C within the block, unless it is ignored."""
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
            yield
            return
        signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, *_: object) -> None:
        ends_now = self.came or self._waits
        self.came = True
        if ends_now:
            raise KeyboardInterrupt

    def until(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a reader until Ctrl-C."""
        while not self.came:
            try:
                self._waits = True
                batch = reader.read_next_batch()
            except (KeyboardInterrupt, StopIteration):
                return
            finally:
                self._waits = False
            yield batch
