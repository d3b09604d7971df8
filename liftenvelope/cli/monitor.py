"""``liftenvelope monitor``: serves a live page about streams, consumers and groups."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Final

import click

from liftenvelope._checks import require
from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._groups.prefix import find_group_prefix, group_prefix_option
from liftenvelope.cli._options.places import AddressType, DurationType, NumberType
from liftenvelope.cli._output.terminal import report, shown
from liftenvelope.cli._serving.logging import start_logging
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.monitor import Collector, MonitorLimits, Sampler
    from liftenvelope.monitor.server import MonitorLink, MonitorPages
    from liftenvelope.rpc.address import Address

__all__ = ["monitor"]

_ADDRESS: Final = "127.0.0.1:8040"


@click.command()
@click.option(
    "--http",
    type=AddressType(),
    metavar="HOST:PORT",
    default=_ADDRESS,
    show_default=True,
    help="Address to serve on.",
)
@click.option(
    "--interval",
    type=DurationType(),
    default="2s",
    show_default=True,
    help="Time between two samples.",
)
@click.option(
    "--gateway-metrics",
    multiple=True,
    metavar="URL",
    help="Metrics of a gateway to show, such as http://127.0.0.1:9293/metrics of serve --http; repeatable.",
)
@click.option(
    "--max-pages",
    type=NumberType(1),
    default=32,
    show_default=True,
    help="Pages that may be open at once.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="Limit of the samples and of what is kept, such as max_streams=500; repeatable. docs/monitor.md has "
    "the names.",
)
@click.option("--no-payloads", is_flag=True, help="Show no payloads, keys and headers.")
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let the page pause and resume consumers and streams, unpin clients, make streams read-only, and "
    "purge streams. Each change is logged.",
)
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
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines of text, or one JSON object per line, on standard error.",
)
@group_prefix_option
@json_option
@on_servers
async def monitor(
    servers: CommandServers,
    http: str,
    interval: float,
    gateway_metrics: tuple[str, ...],
    max_pages: int,
    limits: tuple[str, ...],
    no_payloads: bool,
    allow_changes: bool,
    token: str,
    user_header: str,
    hosts: tuple[str, ...],
    log_format: str,
    group_prefix: str | None,
    as_json: bool,
) -> None:
    """Serve a live page about streams, consumers and groups, until Ctrl-C.

    Without --allow-changes the page only reads: it changes nothing on the servers.
    """
    require("aiohttp", "monitor")
    from liftenvelope.monitor import Collector, History
    from liftenvelope.monitor.gateways import metrics_url
    from liftenvelope.monitor.server import MonitorAccess, MonitorLink, MonitorPages
    from liftenvelope.rpc.address import parse_address

    address = parse_address(http, any_port=True)
    access = MonitorAccess(token=token, user_header=user_header, hosts=hosts)
    access.check(address.host)
    urls = [metrics_url(url) for url in gateway_metrics]
    within, prefix = _parsed(limits), find_group_prefix(servers, group_prefix)
    start_logging("info", log_format, "warn")
    link = MonitorLink(within, group_prefix=prefix)
    kind = "jetstream" if servers.is_jetstream else "liftbridge"
    collector = Collector(
        lambda: _sampler(servers, link, urls), kind=kind, interval=interval, history=History(within)
    )
    pages = MonitorPages(
        collector,
        link=link,
        access=access,
        where=servers.where,
        payloads=not no_payloads,
        changes=allow_changes,
        max_readers=max_pages,
    )
    await _serve(collector, pages, address, servers.where, as_json)


def _parsed(given: Iterable[str]) -> MonitorLimits:
    """Return the limits of ``--limit``.

    Raises:
        UsageError: A name is unknown, or a value is no integer or out of range.
    """
    from liftenvelope.monitor import MonitorLimits

    known = [one.name for one in fields(MonitorLimits)]
    found: dict[str, int] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in known or not (value.isascii() and value.isdecimal()):
            raise UsageError(f"--limit must be NAME=NUMBER, with a name of {', '.join(known)}, got {text!r}")
        found[name] = int(value)
    return MonitorLimits(**found)


async def _serve(
    collector: Collector, pages: MonitorPages, address: Address, where: str, as_json: bool
) -> None:
    """Serve until SIGTERM. Ctrl-C cancels the command."""
    from liftenvelope.monitor.server import serving_monitor

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with serving_monitor(collector, pages, address) as found:
        url = f"http://{found}/"
        report(f"serving the monitor of {where} on {url}", as_json, url=url)
        noting = asyncio.create_task(_note_failure(collector))
        await stopped.wait()
        noting.cancel()


async def _note_failure(collector: Collector) -> None:
    """Tell the user if the first sample fails, such as for a wrong URL."""
    await collector.next()
    latest = collector.history.latest
    for fault in latest.faults if latest is not None else ():
        click.echo(shown(f"Note: sampling of {fault.part} failed, trying again: {fault.text}"), err=True)


@asynccontextmanager
async def _sampler(servers: CommandServers, link: MonitorLink, urls: Sequence[str]) -> AsyncIterator[Sampler]:
    """Connect, and lend the connection to the samples and to what pages ask for."""
    from liftenvelope.monitor.gateways import with_gateways

    async with _servers_sampler(servers, link) as sampler:
        if urls:
            async with with_gateways(sampler, urls) as both:
                yield both
        else:
            yield sampler


@asynccontextmanager
async def _servers_sampler(servers: CommandServers, link: MonitorLink) -> AsyncIterator[Sampler]:
    if servers.is_jetstream:
        async with servers.jetstream() as js:
            with link.to_jetstream(js) as sampler:
                yield sampler
    else:
        async with servers.liftbridge() as client:
            with link.to_liftbridge(client) as sampler:
                yield sampler
