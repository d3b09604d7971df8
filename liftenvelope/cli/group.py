"""``liftenvelope group``: lists, describes, resets and deletes consumer groups."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._groups.prefix import find_group_prefix, group_prefix_option
from liftenvelope.cli._options.lists import partitions_option
from liftenvelope.cli._options.places import NumberType, TimeType
from liftenvelope.cli._output.confirming import confirm, yes_option
from liftenvelope.cli._output.terminal import echo_json, plain, print_facts, print_table, report, shown
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.cli._groups.groups import Aim, GroupAdmin, Reset
    from liftenvelope.monitor.groups import GroupDescription, GroupPartition

__all__ = ["group"]


def _checked(_: click.Context, __: click.Parameter, name: str) -> str:
    if not name:
        raise click.BadParameter("must not be empty, got ''")
    return name


_NAME: Final = click.argument("name", metavar="GROUP", callback=_checked)
_TOPIC: Final = click.option(
    "--topic", "topics", multiple=True, help="Topic, or stream of Liftbridge; repeatable.  [default: all]"
)


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups: those over NATS, and Liftbridge's own."""


def _open(servers: CommandServers, group_prefix: str | None) -> AbstractAsyncContextManager[GroupAdmin]:
    prefix = find_group_prefix(servers, group_prefix)
    if servers.is_jetstream:
        from liftenvelope.cli._groups.nats import NatsGroups

        return NatsGroups.open(servers, prefix)
    from liftenvelope.cli._groups.liftbridge import LiftbridgeGroups

    return LiftbridgeGroups.open(servers)


@group.command("ls")
@group_prefix_option
@json_option
@on_servers
async def list_groups(servers: CommandServers, group_prefix: str | None, as_json: bool) -> None:
    """List groups. Those of Liftbridge are found by the activity stream."""
    async with _open(servers, group_prefix) as admin:
        groups = sorted(await admin.list_groups(), key=lambda one: one.name)
    if as_json:
        echo_json(groups)
    else:
        rows = [(one.name, one.state, one.members, " ".join(one.topics)) for one in groups]
        print_table(["group", "state", "members", "topics"], rows)


@group.command("describe")
@_NAME
@_TOPIC
@group_prefix_option
@json_option
@on_servers
async def describe_group(
    servers: CommandServers, name: str, topics: tuple[str, ...], group_prefix: str | None, as_json: bool
) -> None:
    """Show the members of GROUP, its positions and its lag."""
    async with _open(servers, group_prefix) as admin:
        found = await admin.describe(name, topics)
    if as_json:
        echo_json(found)
    else:
        _print(found)


def _print(found: GroupDescription) -> None:
    lags = [one.lag for one in found.partitions if one.lag is not None]
    facts: dict[str, object] = {
        "state": found.state,
        "coordinator": found.coordinator,
        "generation": found.generation,
        "members": ", ".join(found.members) or "none",
        "lag": sum(lags) if lags else None,
    }
    print_facts(f"Group {found.name}", facts)
    rows = [
        (one.topic, one.partition, one.committed, one.end, one.lag, one.member) for one in found.partitions
    ]
    print_table(["topic", "partition", "next", "end", "lag", "member"], rows)


@group.command("reset")
@_NAME
@_TOPIC
@partitions_option()
@click.option("--to-earliest", is_flag=True, help="Go on at the oldest message.")
@click.option("--to-latest", is_flag=True, help="Go on after the newest message.")
@click.option("--to-offset", type=NumberType(min=0), help="Go on at this offset.")
@click.option("--to-datetime", type=TimeType(), help="Go on at the first message from this time on.")
@click.option("--dry-run", is_flag=True, help="Show the changes and make none.")
@group_prefix_option
@json_option
@on_servers
async def reset_group(
    servers: CommandServers,
    name: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    dry_run: bool,
    group_prefix: str | None,
    as_json: bool,
    **aims: Any,
) -> None:
    """Set the offsets at which GROUP goes on.

    Members of a group over NATS switch to them at once. A group of Liftbridge must have no members.
    """
    from liftenvelope.cli._groups.groups import incomplete_reset

    aim = _aim(**aims)
    async with _open(servers, group_prefix) as admin:
        found = await admin.describe(name, topics)
        plan = await admin.plan(_wanted(found, partitions), aim)
        done = plan if dry_run else await admin.reset(name, plan)
    error = None if dry_run else incomplete_reset(name, done)
    if as_json or error is None:
        _print_resets(name, done, dry_run, as_json)
    if error is not None:
        raise error


def _print_resets(name: str, done: list[Reset], dry_run: bool, as_json: bool) -> None:
    if as_json:
        echo_json({"group": name, "dry_run": dry_run, "partitions": plain(done)})
        return
    click.echo(shown(f"{'would reset' if dry_run else 'reset'} group {name}"))
    print_table(["topic", "partition", "old", "new"], [(r.topic, r.partition, r.old, r.new) for r in done])


def _aim(to_earliest: bool, to_latest: bool, to_offset: int | None, to_datetime: datetime | None) -> Aim:
    given: list[Aim] = [word for word, is_set in (("earliest", to_earliest), ("latest", to_latest)) if is_set]
    if to_offset is not None:
        given.append(to_offset)
    if to_datetime is not None:
        given.append(to_datetime)
    if len(given) != 1:
        options = "--to-earliest, --to-latest, --to-offset and --to-datetime"
        raise UsageError(f"one of {options} must be given, got {len(given)} of them")
    return given[0]


def _wanted(found: GroupDescription, partitions: tuple[int, ...]) -> list[GroupPartition]:
    wanted = [one for one in found.partitions if not partitions or one.partition in partitions]
    missing = set(partitions) - {one.partition for one in wanted}
    if missing or not wanted:
        numbers = ", ".join(map(str, sorted(missing))) or "any"
        raise UsageError(f"group {found.name!r} has no topic with partition {numbers}")
    return wanted


@group.command("rm")
@_NAME
@_TOPIC
@yes_option
@group_prefix_option
@json_option
@on_servers
async def delete_group(
    servers: CommandServers,
    name: str,
    topics: tuple[str, ...],
    yes: bool,
    group_prefix: str | None,
    as_json: bool,
) -> None:
    """Delete GROUP, which must have no members, with its positions.

    Liftbridge's groups end with their last member: their cursors are deleted.
    """
    confirm(f"Delete group {name!r} with its positions", yes=yes)
    async with _open(servers, group_prefix) as admin:
        await admin.delete(name, topics)
    report(f"deleted group {name}", as_json, group=name, deleted=True)
