"""``liftenvelope consumer``: lists, creates, pauses and deletes consumers of JetStream streams."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope.cli._confirming import confirm, yes_option
from liftenvelope.cli._places import DurationType, StartType
from liftenvelope.cli._servers import CommandServers, json_option, on_servers
from liftenvelope.cli._terminal import echo_json, plain, print_facts, print_table, report, shown_time
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.jetstream import ConsumerConfig, ConsumerInfo

__all__ = ["consumer"]

_STREAM: Final = click.argument("stream", metavar="STREAM")
_NAME: Final = click.argument("name", metavar="CONSUMER")


@click.group()
def consumer() -> None:
    """List, create, pause and delete consumers (JetStream)."""


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
@click.option("--filter", "filters", multiple=True, help="Deliver only this subject; repeatable.")
@click.option(
    "--deliver",
    type=StartType("all", "new", "last", "last-per-subject"),
    default="all",
    show_default=True,
    help="First message: all, new, last, last-per-subject, a sequence, a time, or an age such as 1h.",
)
@click.option(
    "--ack",
    "ack_policy",
    type=click.Choice(["explicit", "all", "none"]),
    default="explicit",
    show_default=True,
    help="How messages are acknowledged.",
)
@click.option("--ack-wait", type=DurationType(), help="Time until redelivery.  [default: 30s]")
@click.option("--max-deliver", type=int, help="Deliveries of one message; -1: no limit.")
@click.option("--max-pending", "max_ack_pending", type=int, help="Messages delivered and without an ack.")
@click.option("--max-waiting", type=int, help="Pulls that may wait.")
@click.option("--ephemeral", is_flag=True, help="Delete the consumer when nobody uses it.")
@click.option("--inactive-threshold", type=DurationType(), help="Idle time after which to delete it.")
@click.option("--pinned-group", metavar="GROUP", help="Priority group whose messages one client gets.")
@click.option("--overflow-group", metavar="GROUP", help="Priority group for clients that take overflow.")
@click.option("--description", help="Text for people.")
@json_option
@on_servers
async def create_consumer(
    servers: CommandServers, stream: str, name: str, as_json: bool, **options: Any
) -> None:
    """Create the pull consumer CONSUMER of STREAM."""
    servers.need("nats", "consumer create")
    config = _config(name, options)
    async with servers.jetstream() as js:
        info = (await js.create_consumer(stream, config)).cached_info
    _show(info, as_json)


def _config(name: str, options: dict[str, Any]) -> ConsumerConfig:
    from liftenvelope.jetstream import AckPolicy, ConsumerConfig, PriorityPolicy

    groups = {"pinned_client": options.pop("pinned_group"), "overflow": options.pop("overflow_group")}
    given = [(policy, group) for policy, group in groups.items() if group is not None]
    if len(given) > 1:
        raise UsageError("--pinned-group and --overflow-group exclude each other; leave one of them out")
    if given:
        options["priority_policy"] = PriorityPolicy(given[0][0])
        options["priority_groups"] = (given[0][1],)
    is_ephemeral = options.pop("ephemeral")
    return ConsumerConfig(
        name=name,
        durable_name=None if is_ephemeral else name,
        filter_subjects=options.pop("filters"),
        ack_policy=AckPolicy(options.pop("ack_policy")),
        **_start(options.pop("deliver")),
        **{field: value for field, value in options.items() if value is not None},
    )


def _start(place: Any) -> dict[str, Any]:
    from liftenvelope.jetstream import DeliverPolicy

    if isinstance(place, str):
        return {"deliver_policy": DeliverPolicy(place.replace("-", "_"))}
    if isinstance(place, int):
        if place < 1:
            raise UsageError(f"--deliver must be a sequence of 1 or more, a time or a word, got {place}")
        return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": place}
    moment = datetime.now(UTC) - place if isinstance(place, timedelta) else place
    return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": moment}


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
    facts: dict[str, object] = {
        "stream": info.stream_name,
        "description": config.description or None,
        "kind": f"push to {config.deliver_subject}" if config.is_push else "pull",
        "durable": "yes" if config.durable_name else "no",
        "filter": ", ".join(filters) or None,
        "start": config.deliver_policy,
        "ack policy": config.ack_policy,
        "ack wait": f"{config.ack_wait:g} s" if config.ack_wait else None,
        "max deliver": config.max_deliver,
        "max ack pending": config.max_ack_pending,
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
