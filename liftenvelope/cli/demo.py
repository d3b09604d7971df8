"""``liftenvelope demo``: publishes envelopes and verifies every ack, with a progress bar and a table."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from liftenvelope.cli._connecting.servers import json_option
from liftenvelope.cli._connecting.termination import run_until_terminated
from liftenvelope.cli._demo_job import BROKERS, DemoReport, Job, run_demo
from liftenvelope.cli._options.names import with_option_names
from liftenvelope.cli._options.places import SizeType
from liftenvelope.cli._output.terminal import echo_json
from liftenvelope.errors import LiftEnvelopeError, UsageError


@click.command()
@click.option("--messages", default=100_000, show_default=True, help="Number of envelopes to publish.")
@click.option("--size", type=SizeType(), default=256, show_default=True, help="Bytes of each value.")
@click.option(
    "--window", default=1_000, show_default=True, help="Maximum number of envelopes waiting for acks."
)
@click.option(
    "--broker",
    type=click.Choice(BROKERS),
    default=BROKERS[0],
    show_default=True,
    help="Broker to start with nats-server: our gateway, or the real Liftbridge.",
)
@click.option("--url", metavar="URL", help="URL of a running NATS server to use instead of starting one.")
@click.option("--liftbridge", metavar="HOST:PORT", help="Address of a running broker on that NATS server.")
@json_option
def demo(
    messages: int,
    size: int,
    window: int,
    broker: str,
    url: str | None,
    liftbridge: str | None,
    as_json: bool,
) -> None:
    """Publish envelopes on NATS to the gateway or a Liftbridge server, and verify every ack.

    The exit code is 1 if a message is lost.
    """
    try:
        job = Job(
            messages=messages, size=size, window=window, nats_url=url, liftbridge=liftbridge, broker=broker
        )
    except UsageError as exc:
        raise click.UsageError(with_option_names(str(exc))) from exc
    try:
        report = run_until_terminated(_run(job))
    except LiftEnvelopeError as exc:
        raise click.ClickException(str(exc)) from exc
    if as_json:
        echo_json({**vars(report), "ok": report.ok})
    else:
        _show(report)
    sys.exit(0 if report.ok else 1)


async def _run(job: Job) -> DemoReport:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starting", total=job.messages)
        return await run_demo(
            job,
            on_stage=lambda stage: progress.update(task, description=stage),
            on_ack=lambda count: progress.update(task, advance=count),
        )


def _show(report: DemoReport) -> None:
    console = Console()
    table = Table(title="Envelopes over NATS, and their acks", show_header=False)
    table.add_row("acked messages", f"{report.published - report.lost:,} of {report.published:,}")
    table.add_row("lost", f"{report.lost:,}")
    table.add_row("throughput", f"{report.published / report.seconds:,.0f} acked/s")
    for name, seconds in (("p50", report.p50), ("p99", report.p99), ("max", report.slowest)):
        table.add_row(f"ack latency, {name}", f"{seconds * 1e3:.2f} ms")
    table.add_row("offsets contiguous", "yes" if report.contiguous else "NO")
    table.add_row("read back identical", "yes" if report.read_back else "NO")
    console.print(table)
    codec = Table("operation", "liftenvelope", "protobuf", "ratio", title="Codec, ns per message")
    for times in report.codec:
        codec.add_row(
            times.operation, f"{times.ours_ns:.0f}", f"{times.protobuf_ns:.0f}", f"{times.ratio:.1f}x"
        )
    console.print(codec)
    if not report.ok:
        console.print("[bold red]Some published messages are not safe: see the table above.")
