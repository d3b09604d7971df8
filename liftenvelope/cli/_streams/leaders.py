"""Commands about leaders in a cluster: ``liftenvelope stream step-down`` and ``consumer step-down``."""

from __future__ import annotations

import click

from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._output.terminal import report

__all__ = ["step_down_consumer", "step_down_stream"]

_preferred_option = click.option(
    "--preferred", metavar="SERVER", help="Server that should lead.  [default: any other replica]"
)


@click.command("step-down")
@click.argument("name", metavar="STREAM")
@_preferred_option
@json_option
@on_servers
async def step_down_stream(servers: CommandServers, name: str, preferred: str | None, as_json: bool) -> None:
    """Make the leader of STREAM step down (JetStream), and wait for the next one.

    Run it before you stop a server, or to spread the leaders of a cluster.
    """
    servers.need("nats", "stream step-down")
    async with servers.jetstream() as js:
        leader = await (await js.stream(name)).step_down(preferred)
    report(f"{leader} leads stream {name}", as_json, stream=name, leader=leader)


@click.command("step-down")
@click.argument("stream", metavar="STREAM")
@click.argument("name", metavar="CONSUMER")
@_preferred_option
@json_option
@on_servers
async def step_down_consumer(
    servers: CommandServers, stream: str, name: str, preferred: str | None, as_json: bool
) -> None:
    """Make the leader of CONSUMER step down, and wait for the next one."""
    servers.need("nats", "consumer step-down")
    async with servers.jetstream() as js:
        leader = await (await js.consumer(stream, name)).step_down(preferred)
    text = f"{leader} leads consumer {name} of stream {stream}"
    report(text, as_json, stream=stream, consumer=name, leader=leader)
