"""``liftenvelope dev``: NATS, a gateway, the monitor and demo traffic in one command."""

from __future__ import annotations

import asyncio
import fcntl
import random
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from liftenvelope._checks import require
from liftenvelope.cli._connecting.servers import json_option
from liftenvelope.cli._options.places import AddressType, NumberType, complete_path
from liftenvelope.cli._output.terminal import echo_json, shown
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    from liftenvelope.client import Client
    from liftenvelope.monitor import Sampler
    from liftenvelope.monitor.server import MonitorLink

__all__ = ["dev"]

#: Stream, partitions and consumer group of the demo traffic.
_STREAM: Final = "sensors"
_PARTITIONS: Final = 2
_GROUP: Final = "dashboard"
_SENSORS: Final = ("kitchen", "hall", "cellar", "attic")
#: Messages that each partition keeps.
_KEPT: Final = 100_000
#: Seconds between two samples of the monitor; after a failed publish or read; to finish open calls.
_INTERVAL: Final = 1.0
_PAUSE: Final = 1.0
_DRAIN: Final = 2.0
#: Reason for a taken port in the errors of the gateway and the monitor, and in the log of nats-server.
_IN_USE: Final = "address already in use"


@click.command()
@click.option(
    "--nats-port",
    type=NumberType(0, 65535),
    default=4222,
    show_default=True,
    help="Port of NATS, on the loopback interface; 0 for a free one.",
)
@click.option(
    "--listen",
    type=AddressType(),
    metavar="HOST:PORT",
    default="127.0.0.1:9292",
    show_default=True,
    help="Address of the gateway.",
)
@click.option(
    "--http",
    type=AddressType(),
    metavar="HOST:PORT",
    default="127.0.0.1:8040",
    show_default=True,
    help="Address of the monitor; a loopback address, because the page has no login.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1_000),
    default=20.0,
    show_default=True,
    help=f"Messages per second to publish on {_STREAM!r}; 0 for no traffic.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    shell_complete=complete_path,
    help="Folder that keeps the streams.  [default: a temporary folder]",
)
@json_option
def dev(nats_port: int, listen: str, http: str, rate: float, data_dir: str | None, as_json: bool) -> None:
    """Start NATS, a gateway, the monitor and demo traffic for development, until Ctrl-C.

    Port 0 takes any free port. The streams end with the command, unless --data-dir is given.
    """
    try:
        require("aiohttp", "monitor")
        with _folder(data_dir) as folder:
            asyncio.run(_run(nats_port, listen, http, rate, folder, as_json))
    except UsageError as exc:
        raise click.UsageError(str(exc)) from exc
    except LiftEnvelopeError as exc:
        places = {"--nats-port": f"127.0.0.1:{nats_port}", "--listen": listen, "--http": http}
        raise click.ClickException(_explained(exc, places)) from exc


def _explained(error: LiftEnvelopeError, places: Mapping[str, str]) -> str:
    """Return the text of an error; for a taken port a sentence with the option, not nats-server's log."""
    text = str(error)
    if _IN_USE not in text:
        return text
    for option, address in places.items():
        if re.search(rf"{re.escape(address)}\b", text):
            return (
                f"{option} must have a free port, got {address}: {_IN_USE}; "
                "stop the program that listens there, or choose another port (0: any free one)"
            )
    return text


@contextmanager
def _folder(given: str | None) -> Iterator[str]:
    if given is not None:
        with _locked(Path(given)):
            yield given
        return
    with tempfile.TemporaryDirectory(prefix="liftenvelope-dev-") as folder:
        yield folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make a folder, and keep others out of it: two servers in one folder would destroy its data.

    The lock is that of ``liftenvelope serve --data-dir``.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = stack.enter_context((folder / "lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"--data-dir must be a folder that no other server uses, got {shown(str(folder))}"
            raise click.ClickException(f"{text}: stop the other one, or choose another folder") from None
        except OSError as exc:
            text = f"--data-dir must be a folder that can be written to, got {shown(str(folder))}"
            raise click.UsageError(f"{text}: {exc.strerror}") from exc
        yield


async def _run(nats_port: int, listen: str, http: str, rate: float, folder: str, as_json: bool) -> None:
    from liftenvelope.gateway.embedded import BUFFERED
    from liftenvelope.gateway.serving import Serving, running_gateway
    from liftenvelope.gateway.signals import stopped_by_signals
    from liftenvelope.rpc.address import parse_address
    from liftenvelope.testing import run_nats_server

    own = parse_address(listen, any_port=True)
    settings = {"jetstream": {"store_dir": folder, **BUFFERED}}
    with stopped_by_signals() as stop:
        async with run_nats_server(port=nats_port or None, config=settings) as nats:
            serving = Serving(nats_url=nats.url, gateway={"host": own.host, "port": own.port}, drain=_DRAIN)
            async with (
                running_gateway(serving) as (gateway, _),
                _monitor(gateway.address, http) as page,
                _traffic(nats.url, gateway.address, rate),
            ):
                _tell(nats.url, gateway.address, page, rate, as_json)
                await stop.wait()


@asynccontextmanager
async def _monitor(gateway: str, http: str) -> AsyncIterator[str]:
    """Serve the monitor of the gateway while the block runs; yield the URL of its page."""
    from liftenvelope.monitor import Collector
    from liftenvelope.monitor.server import MonitorAccess, MonitorLink, MonitorPages, serving_monitor
    from liftenvelope.rpc.address import parse_address

    address = parse_address(http, any_port=True)
    access = MonitorAccess()
    try:
        access.check(address.host)
    except UsageError as exc:
        text = f"--http must be a loopback address such as 127.0.0.1:8040, got {address.host}"
        raise UsageError(
            f"{text}: the page of dev has no login, that of liftenvelope monitor has one"
        ) from exc
    link = MonitorLink()
    collector = Collector(lambda: _sampler(gateway, link), kind="liftbridge", interval=_INTERVAL)
    pages = MonitorPages(collector, link=link, access=access, where=f"liftbridge://{gateway}")
    async with serving_monitor(collector, pages, address) as found:
        yield f"http://{found}/"


@asynccontextmanager
async def _sampler(gateway: str, link: MonitorLink) -> AsyncIterator[Sampler]:
    from liftenvelope.client import connect

    async with connect(gateway) as client:
        with link.to_liftbridge(client) as sampler:
            yield sampler


@asynccontextmanager
async def _traffic(nats_url: str, gateway: str, rate: float) -> AsyncIterator[None]:
    """Publish readings of sensors over NATS, and read them as a group, while the block runs."""
    from liftenvelope.client import connect
    from liftenvelope.errors import StreamExistsError

    if not rate:
        yield
        return
    async with connect(gateway) as client:
        with suppress(StreamExistsError):  # kept by --data-dir
            await client.create_stream(_STREAM, _STREAM, partitions=_PARTITIONS, retention_max_messages=_KEPT)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_publish(nats_url, rate)), group.create_task(_read(client))]
            yield
            for task in tasks:
                task.cancel()


async def _publish(nats_url: str, rate: float) -> None:
    import nats

    from liftenvelope.nats import AckInbox, EnvelopePublisher

    async with await nats.connect(nats_url) as nc, AckInbox(nc) as inbox:
        publisher = EnvelopePublisher(nc, _STREAM, inbox=inbox, partitions=_PARTITIONS)
        degrees = dict.fromkeys(_SENSORS, 20.0)
        while True:
            sensor = random.choice(_SENSORS)
            degrees[sensor] += random.uniform(-0.3, 0.3)
            try:
                await publisher.publish(
                    b"%.2f" % degrees[sensor], key=sensor.encode(), headers={"unit": b"C"}
                )
            except LiftEnvelopeError as exc:
                await _note("publish", exc)
            await asyncio.sleep(1 / rate)


async def _read(client: Client) -> None:
    while True:
        try:
            async with client.consumer(_GROUP, [_STREAM], auto_offset="earliest") as consumer:
                async for _ in consumer:
                    pass
        except LiftEnvelopeError as exc:
            await _note("read", exc)


async def _note(what: str, exc: LiftEnvelopeError) -> None:
    """Tell of a failure of the traffic, which goes on after a pause."""
    click.echo(shown(f"Note: the demo traffic failed to {what}, trying again: {exc}"), err=True)
    await asyncio.sleep(_PAUSE)


def _tell(nats: str, gateway: str, page: str, rate: float, as_json: bool) -> None:
    facts = {"nats": nats, "gateway": f"liftbridge://{gateway}", "monitor": page}
    if as_json:
        echo_json(facts)
        return
    for name, url in facts.items():
        click.echo(f"{name:8} {url}")
    traffic = f"publishing {rate:g} readings per second on {_STREAM!r}" if rate else "no traffic"
    click.echo(f"{traffic}; Ctrl-C stops all")
