"""``liftenvelope archive``: keeps archives of many streams up to date."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Final

import click

from liftenvelope.cli._options.places import AddressType, complete_path
from liftenvelope.cli._output.terminal import echo_json, shown
from liftenvelope.cli._serving.logging import start_logging
from liftenvelope.cli._serving.settings import LEVELS
from liftenvelope.errors import LiftEnvelopeError, UsageError

__all__ = ["archive"]

_LOG: Final = logging.getLogger("liftenvelope.archive")


@click.command()
@click.option(
    "--config",
    required=True,
    metavar="FILE",
    shell_complete=complete_path,
    help="TOML file: docs/archiving.md lists its keys.",
)
@click.option(
    "--once", is_flag=True, help="Run each pipeline once. The exit code is 1 if one failed or did not begin."
)
@click.option("--check", is_flag=True, help="Validate the file, print it as JSON, and exit with 0 or 2.")
@click.option(
    "--http",
    type=AddressType(),
    metavar="HOST:PORT",
    help="Address for /healthz, /readyz and /metrics, instead of the file's.",
)
@click.option(
    "--log-level", type=click.Choice(list(LEVELS)), default="info", show_default=True, help="Log level."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines of text, or one JSON object per line, on standard error.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the outcome as JSON in the end, one object per pipeline."
)
def archive(
    config: str,
    once: bool,
    check: bool,
    http: str | None,
    log_level: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Write streams into files or tables, each message once, until SIGTERM.

    On SIGTERM or Ctrl-C, runs under way finish their files; a second signal ends the program at once.
    """
    start_logging(log_level, log_format, "warn")
    try:
        from liftenvelope.archive import read_archive_config
        from liftenvelope.archive.config import with_http

        found = with_http(read_archive_config(config), http)
        if check:
            click.echo(json.dumps(found.shown(), indent=2, default=str))
            return
        succeeded = asyncio.run(_run(found, once=once, as_json=as_json))
    except UsageError as exc:
        raise click.UsageError(shown(str(exc))) from exc
    except LiftEnvelopeError as exc:
        raise click.ClickException(shown(str(exc))) from exc
    if not succeeded:
        sys.exit(1)


async def _run(found: object, *, once: bool, as_json: bool) -> bool:
    from liftenvelope.archive import ArchiveConfig, ArchiveDaemon

    assert isinstance(found, ArchiveConfig)
    # Logged, not printed: standard output is for machines, and standard error may have lines of JSON.
    daemon = ArchiveDaemon(
        found, lambda address: _LOG.info("serving health and metrics on http://%s", address)
    )
    succeeded = await daemon.run(once=once)
    for state in daemon.states if as_json else ():
        counts = {"runs": state.runs, "failures": state.failures, "rows": state.rows, "bytes": state.nbytes}
        letters, error = state.dead_letters, state.error or None
        echo_json({"pipeline": state.name, **counts, "dead_letters": letters, "error": error})
    return succeeded
