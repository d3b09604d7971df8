"""``liftenvelope consumer``: lists, creates, changes, reads and deletes consumers of JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._options.places import DurationType, NumberType
from liftenvelope.cli._output.confirming import confirm, yes_option
from liftenvelope.cli._output.terminal import echo_json, plain, print_facts, print_table, report, shown_time
from liftenvelope.cli._streams.config_changes import own_metadata, print_changes, refused_change, setting_text
from liftenvelope.cli._streams.consumer_messages import next_messages
from liftenvelope.cli._streams.consumer_settings import (
    changed_consumer,
    create_options,
    edit_options,
    new_consumer,
)
from liftenvelope.cli._streams.leaders import step_down_consumer

if TYPE_CHECKING:
    from liftenvelope.jetstream import ConsumerInfo

__all__ = ["consumer"]

_STREAM: Final = click.argument("stream", metavar="STREAM")
_NAME: Final = click.argument("name", metavar="CONSUMER")


@click.group()
def consumer() -> None:
    """List, create, change, read and delete consumers (JetStream)."""


for _command in (next_messages, step_down_consumer):
    consumer.add_command(_command)


@consumer.command("ls")
@_STREAM
@json_option
@on_servers
async def list_consumers(servers: CommandServers, stream: str, as_json: bool) -> None:
    """List the consumers of STREAM."""
    servers.need("nats", "consumer ls")
    async with servers.jetstream() as js:
        found = [one async for one in (await js.stream(stream)).consumers()]
    infos = sorted(found, key=lambda one: one.name)
    if as_json:
        echo_json([_json(info) for info in infos])
        return
    rows = [
        (
            info.name,
            info.num_pending,
            info.num_ack_pending,
            info.num_redelivered,
            info.ack_floor.stream_seq,
            _state(info),
        )
        for info in infos
    ]
    print_table(["consumer", "unprocessed", "ack pending", "redelivered", "ack floor", "state"], rows)


@consumer.command("info")
@_STREAM
@_NAME
@json_option
@on_servers
async def info_of_consumer(servers: CommandServers, stream: str, name: str, as_json: bool) -> None:
    """Show the configuration and the state of CONSUMER."""
    servers.need("nats", "consumer info")
    async with servers.jetstream() as js:
        info = (await js.consumer(stream, name)).cached_info
    _show(info, as_json)


@consumer.command("create")
@_STREAM
@_NAME
@create_options
@json_option
@on_servers
async def create_consumer(
    servers: CommandServers, stream: str, name: str, as_json: bool, **options: Any
) -> None:
    """Create the pull consumer CONSUMER of STREAM."""
    servers.need("nats", "consumer create")
    config = new_consumer(name, options)
    async with servers.jetstream() as js:
        info = (await js.create_consumer(stream, config)).cached_info
    _show(info, as_json)


@consumer.command("edit")
@_STREAM
@_NAME
@edit_options
@click.option("--dry-run", is_flag=True, help="Show the changes, and make none.")
@json_option
@on_servers
async def edit_consumer(
    servers: CommandServers, stream: str, name: str, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Change settings of CONSUMER, which keeps its position.

    Options that are left out change nothing.
    """
    servers.need("nats", "consumer edit")
    async with servers.jetstream() as js:
        old = (await js.consumer(stream, name)).cached_info.config
        new = changed_consumer(old, options)
        if not dry_run and new != old:
            with refused_change("consumer"):
                new = (await js.update_consumer(stream, new)).cached_info.config
    names = {"stream": stream, "consumer": name}
    print_changes("consumer", names, old, new, dry_run=dry_run, as_json=as_json)


@consumer.command("pause")
@_STREAM
@_NAME
@click.argument("duration", type=DurationType())
@json_option
@on_servers
async def pause_consumer(
    servers: CommandServers, stream: str, name: str, duration: float, as_json: bool
) -> None:
    """Pause CONSUMER for DURATION, such as 30m."""
    servers.need("nats", "consumer pause")
    async with servers.jetstream() as js:
        found = await (await js.consumer(stream, name)).pause(duration)
    text = f"paused consumer {name} until {shown_time(found.pause_until)}"
    report(text, as_json, stream=stream, consumer=name, **plain(found))


@consumer.command("resume")
@_STREAM
@_NAME
@json_option
@on_servers
async def resume_consumer(servers: CommandServers, stream: str, name: str, as_json: bool) -> None:
    """End the pause of CONSUMER."""
    servers.need("nats", "consumer resume")
    async with servers.jetstream() as js:
        found = await (await js.consumer(stream, name)).resume()
    report(f"resumed consumer {name}", as_json, stream=stream, consumer=name, **plain(found))


@consumer.command("reset")
@_STREAM
@_NAME
@click.option(
    "--to-sequence",
    type=NumberType(min=1),
    help="Stream sequence to go on at.  [default: that after the ack floor]",
)
@json_option
@on_servers
async def reset_consumer(
    servers: CommandServers, stream: str, name: str, to_sequence: int | None, as_json: bool
) -> None:
    """Set the position of CONSUMER (nats-server 2.14).

    Messages from that position on are delivered again. Acks of messages that were delivered before have no
    effect any more.
    """
    servers.need("nats", "consumer reset")
    async with servers.jetstream() as js:
        one = await js.consumer(stream, name)
        old = one.cached_info.delivered.stream_seq + 1
        new = (await one.reset(to_sequence)).reset_seq
    text = f"reset consumer {name}: it goes on at sequence {new}, and would have gone on at {old}"
    report(text, as_json, stream=stream, consumer=name, old=old, new=new)


@consumer.command("unpin")
@_STREAM
@_NAME
@click.argument("group")
@json_option
@on_servers
async def unpin_consumer(servers: CommandServers, stream: str, name: str, group: str, as_json: bool) -> None:
    """Unpin the pinned client of GROUP, so that the server pins another one."""
    servers.need("nats", "consumer unpin")
    async with servers.jetstream() as js:
        await (await js.consumer(stream, name)).unpin(group)
    text = f"unpinned the client of group {group} of consumer {name}"
    report(text, as_json, stream=stream, consumer=name, group=group, unpinned=True)


@consumer.command("rm")
@_STREAM
@_NAME
@yes_option
@json_option
@on_servers
async def delete_consumer(servers: CommandServers, stream: str, name: str, yes: bool, as_json: bool) -> None:
    """Delete CONSUMER with its position."""
    servers.need("nats", "consumer rm")
    confirm(f"Delete consumer {name!r} of stream {stream!r}", yes=yes)
    async with servers.jetstream() as js:
        await js.delete_consumer(stream, name)
    text = f"deleted consumer {name} of stream {stream}"
    report(text, as_json, stream=stream, consumer=name, deleted=True)


def _json(info: ConsumerInfo) -> dict[str, Any]:
    """Return an info with the configuration as the server writes it."""
    return {**plain(info), "config": info.config.to_json()}


def _state(info: ConsumerInfo) -> str:
    return f"paused, {info.pause_remaining:.0f} s left" if info.paused else "active"


def _show(info: ConsumerInfo, as_json: bool) -> None:
    if as_json:
        echo_json(_json(info))
        return
    config = info.config
    filters = config.filter_subjects or ((config.filter_subject,) if config.filter_subject else ())
    pinned = [
        f"{one.group}: {one.pinned_client_id} since {shown_time(one.pinned_ts)}"
        for one in info.priority_groups
        if one.pinned_client_id
    ]
    own = own_metadata(config.metadata)
    facts: dict[str, object] = {
        "stream": info.stream_name,
        "description": config.description or None,
        "kind": f"push to {config.deliver_subject}" if config.is_push else "pull",
        "durable": "yes" if config.durable_name else "no",
        "filter": ", ".join(filters) or None,
        "metadata": setting_text("metadata", own) if own else None,
        "start": config.deliver_policy,
        "ack policy": config.ack_policy,
        "ack wait": f"{config.ack_wait:g} s" if config.ack_wait else None,
        "backoff": setting_text("backoff", config.backoff) if config.backoff else None,
        "max deliver": config.max_deliver,
        "max ack pending": config.max_ack_pending,
        "inactive threshold": f"{config.inactive_threshold:g} s" if config.inactive_threshold else None,
        "headers only": "yes" if config.headers_only else None,
        "replicas": config.num_replicas or None,
        "priority groups": ", ".join(config.priority_groups) or None,
        "pinned": ", ".join(pinned) or None,
        "created": shown_time(info.created),
        "state": _state(info),
        "last delivered": f"sequence {info.delivered.stream_seq}, {shown_time(info.delivered.last_active)}",
        "ack floor": f"sequence {info.ack_floor.stream_seq}",
        "unprocessed": info.num_pending,
        "ack pending": info.num_ack_pending,
        "redelivered": info.num_redelivered,
        "waiting pulls": info.num_waiting,
    }
    print_facts(f"Consumer {info.name}", facts)
