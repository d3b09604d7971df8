"""``liftenvelope serve``: runs the gateway, with its own nats-server or on a running one."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope.cli._options.places import NumberType, complete_path
from liftenvelope.cli._serving.config_file import ConfigFile, read_config
from liftenvelope.cli._serving.configuration import Configuration
from liftenvelope.cli._serving.logging import start_logging
from liftenvelope.cli._serving.serve_monitor import MONITOR_PATH, ServeMonitor, monitor_settings
from liftenvelope.cli._serving.settings import PREFIX, as_options
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from liftenvelope.gateway import Gateway
    from liftenvelope.gateway.http_endpoint import Pages
    from liftenvelope.gateway.serving import Serving

_LOG: Final = logging.getLogger("liftenvelope.gateway")


def _read_config(context: click.Context, _: click.Parameter, path: str | None) -> ConfigFile | None:
    """Read the file before the other options, which take their defaults from it."""
    if path is None or context.resilient_parsing:
        return None
    try:
        found = read_config(path)
    except UsageError as exc:
        raise click.UsageError(str(exc), context) from exc
    context.default_map = {**(context.default_map or {}), **found.settings}
    return found


@click.command()
@click.option(
    "--config",
    is_eager=True,
    shell_complete=complete_path,
    callback=_read_config,
    envvar=f"{PREFIX}CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="TOML file with settings: docs/operating.md lists its keys.",
)
@click.option("--check", is_flag=True, help="Validate the configuration, print it, and exit with 0 or 2.")
@click.option("--json", "as_json", is_flag=True, help="With --check: print it as JSON.")
@as_options
@click.option(
    "--max-message",
    type=NumberType(min=1),
    metavar="BYTES",
    help="Largest envelope that clients may publish by gRPC, as --limit max_message_bytes.  "
    "[default: 1048576]",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="Limit on clients, such as max_connections=100; repeatable. docs/limits.md lists all.  "
    f"[env var: {PREFIX}LIMIT_NAME]",
)
@click.pass_context
def serve(context: click.Context, /, *, check: bool, as_json: bool, **options: Any) -> None:
    """Serve the Liftbridge API, with every stream in JetStream.

    Without --nats it starts a nats-server of its own, for this machine alone. Ctrl-C or SIGTERM stops both,
    after publishes under way have their acks; a second one stops them at once. SIGHUP reads the certificates
    and the policy file again.

    An option of the command line replaces its environment variable, which replaces the value in the file of
    --config.
    """
    if as_json and not check:
        raise click.UsageError("--json needs --check")
    start_logging(options["log_level"], options["log_format"], options["nats_log_level"])
    try:
        configuration = Configuration(context, options)
        configuration.warn_of_unknown_variables()
        try:
            serving = configuration.serving()
            monitor = monitor_settings(configuration, serving)
            if check:
                _check(configuration, serving, as_json=as_json)
            elif configuration["workers"] > 1:
                asyncio.run(_supervise(serving, configuration, monitor))
            else:
                asyncio.run(_serve(serving, monitor))
        except UsageError as exc:
            raise click.UsageError(configuration.explain(exc)) from exc
    except UsageError as exc:
        raise click.UsageError(str(exc)) from exc
    except LiftEnvelopeError as exc:
        raise (click.UsageError if check else click.ClickException)(str(exc)) from exc


def _check(configuration: Configuration, serving: Serving, *, as_json: bool) -> None:
    """Check what only a start would show, without a start, and print the configuration.

    Raises:
        UsageError: There is no nats-server to start, or its folder can't be used.
    """
    from liftenvelope.gateway.embedded import check_data_dir, find_nats_server

    if serving.data_dir is not None:
        find_nats_server()
        check_data_dir(serving.data_dir)
    click.echo(configuration.as_json(serving) if as_json else configuration.as_toml(serving))


async def _serve(serving: Serving, monitor: ServeMonitor | None) -> None:
    from liftenvelope.gateway.serving import serve as run

    def ready(gateway: Gateway, url: str) -> None:
        started.set_result([gateway.address])
        _say(serving, [gateway.address], url)

    loop = asyncio.get_running_loop()
    started: asyncio.Future[Sequence[str]] = loop.create_future()
    http: asyncio.Future[str] = loop.create_future()
    async with _pages(monitor, started, http) as pages:
        await run(serving, ready, partial(_say_http, monitor, http), pages=pages)


async def _supervise(serving: Serving, configuration: Configuration, monitor: ServeMonitor | None) -> None:
    from liftenvelope.cli._serving.worker import worker_command
    from liftenvelope.gateway.supervisor import Program, supervise

    def ready(addresses: list[str], url: str) -> None:
        started.set_result(addresses)
        _say(serving, addresses, url)

    logging = {name: configuration[name] for name in ("log_level", "log_format", "nats_log_level")}
    program = Program(worker_command(), logging)
    loop = asyncio.get_running_loop()
    started: asyncio.Future[Sequence[str]] = loop.create_future()
    http: asyncio.Future[str] = loop.create_future()
    async with _pages(monitor, started, http) as pages:
        say_http = partial(_say_http, monitor, http)
        await supervise(serving, configuration["workers"], program, ready, say_http, pages)


@asynccontextmanager
async def _pages(
    monitor: ServeMonitor | None, started: asyncio.Future[Sequence[str]], http: asyncio.Future[str]
) -> AsyncIterator[Pages]:
    if monitor is None:
        yield {}
        return
    async with monitor.serving(started, http) as pages:
        yield pages


def _say(serving: Serving, addresses: list[str], url: str) -> None:
    where = f" in {serving.data_dir}{os.sep}jetstream" if serving.data_dir is not None else ""
    click.echo(f"serving the Liftbridge API on {','.join(addresses)}, with the streams of {url}{where}")


def _say_http(monitor: ServeMonitor | None, http: asyncio.Future[str], address: str) -> None:
    http.set_result(address)
    more = f", and the monitor on http://{address}{MONITOR_PATH}/" if monitor is not None else ""
    _LOG.info("serving health and metrics on http://%s%s", address, more)
