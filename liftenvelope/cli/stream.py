"""``liftenvelope stream``: lists, creates, changes and deletes streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope._checks import RESERVED
from liftenvelope.cli._checks.liftbridge import is_gateway
from liftenvelope.cli._connecting.servers import CommandServers, json_option, on_servers
from liftenvelope.cli._options.lists import partitions_option
from liftenvelope.cli._options.places import NumberType, StartType
from liftenvelope.cli._output.confirming import confirm, yes_option
from liftenvelope.cli._output.terminal import (
    counted,
    echo_json,
    plain,
    print_facts,
    print_table,
    report,
    shown,
    shown_time,
)
from liftenvelope.cli._streams.config_changes import print_changes, refused_change
from liftenvelope.cli._streams.leaders import step_down_stream
from liftenvelope.cli._streams.stream_messages import delete_message, get_message, list_subjects
from liftenvelope.cli._streams.stream_settings import (
    edit_options,
    jetstream_config,
    liftbridge_settings,
    settings_options,
)
from liftenvelope.errors import (
    NoSuchStreamError,
    NotLeaderError,
    UsageError,
)

if TYPE_CHECKING:
    from liftenvelope import client as lift
    from liftenvelope.jetstream import StreamInfo

__all__ = ["stream"]

_STREAM: Final = click.argument("name", metavar="STREAM")
_PARTITIONS: Final = partitions_option()
#: Partitions to ask about at a time.
_AT_ONCE: Final = 16


@click.group()
def stream() -> None:
    """List, create, change and delete streams."""


for _command in (get_message, delete_message, list_subjects, step_down_stream):
    stream.add_command(_command)


@stream.command("ls")
@click.option("--subject", help="JetStream: only streams that record this subject; wildcards are allowed.")
@click.option("--all", "-a", "show_all", is_flag=True, help="Liftbridge: the servers' own streams as well.")
@json_option
@on_servers
async def list_streams(servers: CommandServers, subject: str | None, show_all: bool, as_json: bool) -> None:
    """List the streams of the servers."""
    if servers.is_jetstream:
        async with servers.jetstream() as js:
            infos = sorted([one async for one in js.streams(subject)], key=lambda one: one.config.name)
        _print_list(infos, as_json)
        return
    if subject is not None:
        servers.need("nats", "--subject")
    async with servers.liftbridge() as client:
        found = (await client.fetch_metadata()).streams
    streams = [found[name] for name in sorted(found) if show_all or not name.startswith("__")]
    if as_json:
        echo_json([_liftbridge_json(one, one.partitions.values()) for one in streams])
        return
    rows = [(one.name, one.subject, len(one.partitions), shown_time(one.created_ns)) for one in streams]
    print_table(["stream", "subject", "partitions", "created"], rows)


def _print_list(infos: list[StreamInfo], as_json: bool) -> None:
    if as_json:
        echo_json([_jetstream_json(info) for info in infos])
        return
    rows = [
        (
            info.config.name,
            _subjects(info.config.subjects, 3),
            info.state.messages,
            info.state.bytes,
            info.state.consumer_count,
            shown_time(info.state.last_ts),
        )
        for info in infos
    ]
    print_table(["stream", "subjects", "messages", "bytes", "consumers", "newest"], rows)


@stream.command("info")
@_STREAM
@json_option
@on_servers
async def info_of_stream(servers: CommandServers, name: str, as_json: bool) -> None:
    """Show the configuration and the state of STREAM."""
    if servers.is_jetstream:
        async with servers.jetstream() as js:
            info = (await js.stream(name)).cached_info
        if as_json:
            echo_json(_jetstream_json(info))
        else:
            _print_jetstream(info)
        return
    async with servers.liftbridge() as client:
        metadata = await client.fetch_metadata(streams=[name, *RESERVED])  # these tell a gateway
        found = metadata.get_stream(name)
        if found is None:
            raise NoSuchStreamError(0, f"there is no stream {name!r}")
        slots = asyncio.Semaphore(_AT_ONCE)
        parts = await asyncio.gather(
            *(
                _partition(client, name, one, slots, clears_flags=is_gateway(metadata))
                for one in found.partitions.values()
            )
        )
    if as_json:
        echo_json(_liftbridge_json(found, parts))
    else:
        _print_liftbridge(found, parts)


async def _partition(
    client: lift.Client,
    stream: str,
    known: lift.PartitionInfo,
    slots: asyncio.Semaphore,
    *,
    clears_flags: bool,
) -> lift.PartitionInfo:
    """Ask the leader of a partition. A paused one has none, so what the cluster knows has to do.

    Liftbridge leaves the flag of a paused partition set when it is woken. So the partition is paused unless a
    leader answers. A gateway clears the flag, and answers for paused partitions as well.
    """
    if not known.leader or (clears_flags and known.paused):
        return known
    async with slots:
        try:
            found = await client.fetch_partition_metadata(stream, known.id, wait_for_leader=not known.paused)
        except NotLeaderError:
            return known
    return replace(found, paused=False)


def _subjects(subjects: Sequence[str], most: int) -> str:
    more = f" and {len(subjects) - most:,} more" if len(subjects) > most else ""
    return ", ".join(subjects[:most]) + more


def _jetstream_json(info: StreamInfo) -> dict[str, Any]:
    """Return an info with the configuration as the server writes it, so that ``--config`` can read it."""
    return {**plain(info), "config": info.config.to_json()}


def _print_jetstream(info: StreamInfo) -> None:
    config, state = info.config, info.state
    replicas = counted(config.num_replicas, "replica")
    limits = {
        "max messages": config.max_msgs,
        "max bytes": config.max_bytes,
        "max messages per subject": config.max_msgs_per_subject,
        "max message size": config.max_msg_size,
        "max consumers": config.max_consumers,
    }
    flags = (
        "allow_direct", "allow_rollup_hdrs", "allow_msg_ttl", "allow_atomic", "allow_batched", "deny_delete",
        "deny_purge", "sealed", "no_ack",
    )  # fmt: skip
    facts: dict[str, object] = {
        "description": config.description or None,
        "subjects": _subjects(config.subjects, 50) or None,
        "mirror of": None if config.mirror is None else config.mirror.name,
        "sources": ", ".join(one.name for one in config.sources) or None,
        "retention": f"{config.retention}, discard {config.discard}",
        "storage": f"{config.storage}, {replicas}, compression {config.compression}",
        "max age": f"{config.max_age:g} s" if config.max_age else None,
        **{name: value for name, value in limits.items() if value not in (-1, 0)},
        "duplicate window": f"{config.duplicate_window:g} s" if config.duplicate_window else None,
        "settings": ", ".join(one for one in flags if getattr(config, one)) or None,
        "created": shown_time(info.created),
        "leader": None if info.cluster is None else info.cluster.leader,
        "messages": state.messages,
        "bytes": state.bytes,
        "sequences": f"{state.first_seq:,} to {state.last_seq:,}, {state.num_deleted:,} deleted",
        "oldest message": shown_time(state.first_ts),
        "newest message": shown_time(state.last_ts),
        "distinct subjects": state.num_subjects,
        "consumers": state.consumer_count,
    }
    print_facts(f"Stream {config.name}", facts)


def _liftbridge_json(info: lift.StreamInfo, parts: Any) -> dict[str, Any]:
    found: dict[str, Any] = plain(info)
    return {**found, "partitions": [plain(one) for one in parts]}


def _print_liftbridge(info: lift.StreamInfo, parts: list[lift.PartitionInfo]) -> None:
    print_facts(
        f"Stream {info.name}",
        {"subject": info.subject, "created": shown_time(info.created_ns), "partitions": len(parts)},
    )
    columns = ["partition", "leader", "replicas", "in sync", "committed", "newest", "state", "received"]
    rows = [
        (
            one.id,
            one.leader or "-",
            len(one.replicas),
            len(one.isr),
            one.high_watermark,
            one.newest_offset,
            _state(one),
            shown_time(one.messages_received.latest_ns),
        )
        for one in parts
    ]
    print_table(columns, rows)


def _state(part: lift.PartitionInfo) -> str:
    return (
        ", ".join(name for name, is_set in (("paused", part.paused), ("read-only", part.readonly)) if is_set)
        or "active"
    )


@stream.command("create")
@_STREAM
@settings_options
@json_option
@on_servers
async def create_stream(servers: CommandServers, name: str, as_json: bool, **options: Any) -> None:
    """Create STREAM. What is not given is the server's default."""
    if servers.is_jetstream:
        config = jetstream_config(name, options)
        async with servers.jetstream() as js:
            info = (await js.create_stream(config)).cached_info
        if as_json:
            echo_json(_jetstream_json(info))
        else:
            _print_jetstream(info)
        return
    if options.pop("config_file"):
        servers.need("nats", "--config")
    settings = liftbridge_settings(name, options)
    async with servers.liftbridge() as client:
        await client.create_stream(**settings)
        found = await client.fetch_metadata(streams=[name])
    if as_json:
        echo_json(_liftbridge_json(one := found.streams[name], one.partitions.values()))
    else:
        click.echo(shown(f"created stream {name} on subject {settings['subject']}"))


@stream.command("edit")
@_STREAM
@edit_options
@click.option("--dry-run", is_flag=True, help="Show the changes and make none.")
@json_option
@on_servers
async def edit_stream(
    servers: CommandServers, name: str, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Change settings of STREAM (JetStream). Options that are left out change nothing.

    Liftbridge's API changes no settings: there are `pause`, `resume` and `readonly`.
    """
    if not servers.is_jetstream:
        text = "stream edit needs JetStream, because Liftbridge's API changes no settings of a stream"
        raise UsageError(f"{text}; it has: stream pause, stream resume, stream readonly")
    async with servers.jetstream() as js:
        old = (await js.stream(name)).cached_info.config
        new = jetstream_config(name, options, old)
        if not dry_run and new != old:
            with refused_change("stream"):
                new = (await js.update_stream(new)).cached_info.config
    print_changes("stream", {"stream": name}, old, new, dry_run=dry_run, as_json=as_json)


@stream.command("pause")
@_STREAM
@_PARTITIONS
@click.option("--resume-all", is_flag=True, help="A publish to one of the partitions wakes all of them.")
@json_option
@on_servers
async def pause_stream(
    servers: CommandServers, name: str, partitions: tuple[int, ...], resume_all: bool, as_json: bool
) -> None:
    """Pause partitions of STREAM until a publish or `resume` wakes them (Liftbridge).

    Messages that are published on NATS in the meantime are not recorded.
    """
    servers.need("liftbridge", "stream pause")
    async with servers.liftbridge() as client:
        await client.pause_stream(name, partitions=partitions or None, resume_all=resume_all)
    report(f"paused {_which(name, partitions)}", as_json, **_changed(name, partitions), paused=True)


@stream.command("resume")
@_STREAM
@_PARTITIONS
@json_option
@on_servers
async def resume_stream(
    servers: CommandServers, name: str, partitions: tuple[int, ...], as_json: bool
) -> None:
    """Wake paused partitions of STREAM (Liftbridge)."""
    from liftenvelope.monitor.changes import resume_partitions

    servers.need("liftbridge", "stream resume")
    async with servers.liftbridge() as client:
        await resume_partitions(client, name, partitions)
    report(f"resumed {_which(name, partitions)}", as_json, **_changed(name, partitions), paused=False)


@stream.command("readonly")
@_STREAM
@_PARTITIONS
@click.option("--off", is_flag=True, help="Make the partitions writable again.")
@json_option
@on_servers
async def set_readonly(
    servers: CommandServers, name: str, partitions: tuple[int, ...], off: bool, as_json: bool
) -> None:
    """Make partitions of STREAM read-only (Liftbridge)."""
    servers.need("liftbridge", "stream readonly")
    async with servers.liftbridge() as client:
        await client.set_stream_readonly(name, partitions=partitions or None, readonly=not off)
    text = f"made {_which(name, partitions)} {'writable' if off else 'read-only'}"
    report(text, as_json, **_changed(name, partitions), readonly=not off)


def _which(name: str, partitions: tuple[int, ...]) -> str:
    numbers = ", ".join(map(str, sorted(set(partitions))))
    return f"partitions {numbers} of {name}" if partitions else f"all partitions of {name}"


def _changed(name: str, partitions: tuple[int, ...]) -> dict[str, object]:
    return {"stream": name, "partitions": sorted(set(partitions)) or "all"}


@stream.command("purge")
@_STREAM
@click.option("--keep", type=NumberType(min=0), help="Number of newest messages to keep.")
@click.option("--seq", type=NumberType(min=1), help="Delete only messages before this sequence.")
@click.option("--subject", help="Delete only messages on this subject; wildcards are allowed.")
@yes_option
@json_option
@on_servers
async def purge_stream(
    servers: CommandServers,
    name: str,
    keep: int | None,
    seq: int | None,
    subject: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete messages of STREAM and keep the stream (JetStream)."""
    servers.need("nats", "stream purge")
    if keep is not None and seq is not None:
        raise UsageError("--keep and --seq exclude each other; leave one of them out")
    confirm(f"Delete {'' if keep or seq or subject else 'all '}messages of stream {name!r}", yes=yes)
    async with servers.jetstream() as js:
        deleted = await (await js.stream(name)).purge(keep=keep, sequence=seq, subject=subject)
    report(f"deleted {counted(deleted, 'message')} of {name}", as_json, stream=name, deleted=deleted)


@stream.command("rm")
@_STREAM
@yes_option
@json_option
@on_servers
async def delete_stream(servers: CommandServers, name: str, yes: bool, as_json: bool) -> None:
    """Delete STREAM with its messages."""
    confirm(f"Delete stream {name!r} with its messages", yes=yes)
    if servers.is_jetstream:
        async with servers.jetstream() as js:
            await js.delete_stream(name)
    else:
        async with servers.liftbridge() as client:
            await client.delete_stream(name)
    report(f"deleted stream {name}", as_json, stream=name, deleted=True)


@stream.command("watch")
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option(
    "--start",
    type=StartType("earliest", "latest", "new"),
    default="new",
    show_default=True,
    help="Liftbridge: first event: new, earliest, latest, an offset, a time, or an age such as 1h.",
)
@click.option("--limit", type=NumberType(min=1), help="Number of events after which to end.")
@click.option("--no-follow", is_flag=True, help="Liftbridge: end after the newest event.")
@click.option("--api", is_flag=True, help="JetStream: also each request to JetStream's API.")
@json_option
@on_servers
async def watch_streams(
    servers: CommandServers,
    names: tuple[str, ...],
    start: Any,
    limit: int | None,
    no_follow: bool,
    api: bool,
    as_json: bool,
) -> None:
    """Show events of streams, consumers and groups as they happen: of STREAM, or of all.

    JetStream's events are its advisories, which servers do not keep. Liftbridge's are those of its activity
    stream.
    """
    from liftenvelope.cli._streams.stream_events import Watch, watch_jetstream, watch_liftbridge

    watch = Watch(names=names, start=start, limit=limit, no_follow=no_follow, api=api, as_json=as_json)
    await (watch_jetstream if servers.is_jetstream else watch_liftbridge)(servers, watch)
