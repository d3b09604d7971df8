"""``liftenvelope top``: streams, rates, groups and lag, live in the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._groups.prefix import find_group_prefix, group_prefix_option
from liftenvelope.cli._options.places import DurationType
from liftenvelope.cli._output.terminal import echo_json, rich_console
from liftenvelope.cli._top_screen import ORDERS, sample_json, screen
from liftenvelope.errors import TransportError

if TYPE_CHECKING:
    from liftenvelope.monitor import Collector, Sampler

__all__ = ["top"]

_HINT: Final = Text("q quits, s sorts by rate, messages or name", style="bright_black")


@click.command()
@click.option(
    "--interval", type=DurationType(), default="1s", show_default=True, help="Time between two samples."
)
@click.option("--once", is_flag=True, help="Print one screen and end. The default if there is no terminal.")
@group_prefix_option
@json_option
@on_servers
async def top(
    servers: CommandServers, interval: float, once: bool, group_prefix: str | None, as_json: bool
) -> None:
    """Show streams, rates, groups and lag, live in the terminal.

    The key q quits, and s changes the order. With --json, each sample is one line. After the first one, a
    lost connection is an alert in the lines until it is back.
    """
    from liftenvelope.monitor import Collector

    prefix = find_group_prefix(servers, group_prefix)
    kind = "jetstream" if servers.is_jetstream else "liftbridge"
    collector = Collector(lambda: _sampler(servers, prefix), kind=kind, interval=interval)
    task = asyncio.create_task(collector.run())
    try:
        if not as_json and not once and sys.stdin.isatty() and sys.stdout.isatty():
            await _show_live(collector, servers.where)
        else:
            await _print(collector, servers.where, once, as_json)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _sampler(servers: CommandServers, group_prefix: str) -> AsyncIterator[Sampler]:
    if servers.is_jetstream:
        from liftenvelope.monitor.jetstream import JetStreamSampler

        async with servers.jetstream() as js:
            yield JetStreamSampler(js, group_prefix=group_prefix)
    else:
        from liftenvelope.monitor.liftbridge import LiftbridgeSampler

        async with servers.liftbridge() as client:
            yield LiftbridgeSampler(client)


async def _print(collector: Collector, where: str, once: bool, as_json: bool) -> None:
    """Print samples: one as text, or lines of JSON. One alone is the second, since the first has no rates."""
    from liftenvelope.monitor import alerts

    version, has_begun = 0, False
    while True:
        version = await collector.next(version)
        latest = collector.history.latest
        assert latest is not None
        lost = next((one for one in latest.faults if one.part == "connection"), None)
        if lost is not None and (once or not as_json or not has_begun):
            raise TransportError(lost.text)
        has_begun = True
        found = alerts(latest)
        if as_json and (version > 1 or not once):
            echo_json(sample_json(collector.history, found))
        elif version > 1:
            rows = 2 * (len(latest.streams) + len(latest.groups) + len(latest.consumers)) + 20
            console = rich_console()
            console.print(screen(collector.history, found, where, ORDERS[0], rows, console.width))
        if version > 1 and (once or not as_json):
            return


async def _show_live(collector: Collector, where: str) -> None:
    """Draw each sample, until the key q or a cancellation. The terminal is restored in any case."""
    from liftenvelope.monitor import alerts

    console, order, version = Console(highlight=False), 0, 0
    changes: asyncio.Queue[str] = asyncio.Queue(maxsize=100)
    with _keys(changes), Live(console=console, screen=True, auto_refresh=False) as live:
        waiting = asyncio.create_task(collector.next(version))
        pressed = asyncio.create_task(changes.get())
        try:
            while True:
                await asyncio.wait({waiting, pressed}, return_when=asyncio.FIRST_COMPLETED)
                if pressed.done():
                    if pressed.result() in ("q", ""):
                        return
                    order = (order + (pressed.result() == "s")) % len(ORDERS)
                    pressed = asyncio.create_task(changes.get())
                if waiting.done():
                    version = waiting.result()
                    waiting = asyncio.create_task(collector.next(version))
                if (latest := collector.history.latest) is not None:
                    rows, found = console.height - 1, alerts(latest)
                    shown = screen(collector.history, found, where, ORDERS[order], rows, console.width)
                    live.update(Group(_HINT, shown), refresh=True)
        finally:
            waiting.cancel()
            pressed.cancel()


@contextmanager
def _keys(pressed: asyncio.Queue[str]) -> Iterator[None]:
    """Put each key into a queue, without waiting for a line end. The end of the input is an empty text."""
    import termios
    import tty

    number, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(number)

    def read() -> None:
        for key in os.read(number, 100).decode("ascii", "replace") or [""]:
            with suppress(asyncio.QueueFull):
                pressed.put_nowait(key)

    tty.setcbreak(number)  # Ctrl-C still interrupts
    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
