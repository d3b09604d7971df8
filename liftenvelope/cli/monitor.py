"""``liftenvelope monitor``: serves a live page about streams, consumers and groups."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import click

from liftenvelope._checks import require
from liftenvelope.cli._places import DurationType
from liftenvelope.cli._servers import CommandServers, json_option, on_servers
from liftenvelope.cli._terminal import report
from liftenvelope.rpc.address import parse_address

if TYPE_CHECKING:
    from liftenvelope.monitor import Sampler
    from liftenvelope.monitor.server import MessageSourceHolder

__all__ = ["monitor"]

_ADDRESS: Final = "127.0.0.1:8040"


@click.command()
@click.option("--http", metavar="HOST:PORT", default=_ADDRESS, show_default=True, help="Address to serve on.")
@click.option(
    "--interval",
    type=DurationType(),
    default=2.0,
    show_default=True,
    help="Time between two samples.",
)
@click.option("--no-payloads", is_flag=True, help="Show no payloads, keys and headers.")
@click.option(
    "--token",
    envvar="LIFTENVELOPE_MONITOR_TOKEN",
    show_envvar=True,
    default="",
    show_default=False,
    help="Token that the page asks for; required unless the address is loopback. Others can see an option "
    "of a running command, so the environment variable is safer.",
)
@click.option(
    "--user-header",
    metavar="NAME",
    default="",
    help="Trust this header of a reverse proxy that logs users in. The proxy must be the only way to the "
    "address, and must remove the header from its own requests.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host name in the page's URL, besides localhost and IP addresses; repeatable.",
)
@json_option
@on_servers
async def monitor(
    servers: CommandServers,
    http: str,
    interval: float,
    no_payloads: bool,
    token: str,
    user_header: str,
    hosts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve a live page about streams, consumers and groups, until Ctrl-C.

    The page only reads: it changes nothing on the servers.
    """
    require("aiohttp", "monitor")
    from liftenvelope.monitor import Collector
    from liftenvelope.monitor.server import (
        MessageSourceHolder,
        MonitorAccess,
        MonitorServer,
        serving_monitor,
    )

    address = parse_address(http, any_port=True)
    access = MonitorAccess(token=token, user_header=user_header, hosts=hosts)
    access.check(address.host)
    source = MessageSourceHolder()
    kind = "jetstream" if servers.is_jetstream else "liftbridge"
    collector = Collector(lambda: _sampler(servers, source), kind=kind, interval=interval)
    server = MonitorServer(
        collector, source=source, access=access, where=servers.where, payloads=not no_payloads
    )
    async with serving_monitor(collector, server, address) as found:
        url = f"http://{found}/"
        report(f"serving the monitor of {servers.where} on {url}", as_json, url=url)
        await _stopped()


async def _stopped() -> None:
    """Wait for SIGTERM. Ctrl-C cancels the command."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


@asynccontextmanager
async def _sampler(servers: CommandServers, source: MessageSourceHolder) -> AsyncIterator[Sampler]:
    """Connect, and lend the connection to the samples and to the reader of messages."""
    from liftenvelope.monitor import server as pages

    try:
        if servers.is_jetstream:
            from liftenvelope.monitor.jetstream import JetStreamSampler

            async with servers.jetstream() as js:
                source.current = pages.JetStreamMessages(js)
                yield JetStreamSampler(js)
        else:
            from liftenvelope.monitor.liftbridge import LiftbridgeSampler

            async with servers.liftbridge() as client:
                source.current = pages.LiftbridgeMessages(client)
                yield LiftbridgeSampler(client)
    finally:
        source.current = None
