"""Settings of ``liftenvelope stream create`` and ``edit``: options, and their names in both APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope.cli._options.lists import with_options
from liftenvelope.cli._options.places import DurationType, NumberType, SizeType
from liftenvelope.cli._streams.config_changes import config_option, overlaid, read_config
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.jetstream import StreamConfig

__all__ = ["edit_options", "jetstream_config", "liftbridge_settings", "settings_options"]


#: Option -> field of JetStream's configuration.
_JETSTREAM: Final = {
    "subjects": "subjects",
    "description": "description",
    "storage": "storage",
    "retention": "retention",
    "discard": "discard",
    "replicas": "num_replicas",
    "max_age": "max_age",
    "max_bytes": "max_bytes",
    "max_msgs": "max_msgs",
    "max_msgs_per_subject": "max_msgs_per_subject",
    "max_msg_size": "max_msg_size",
    "dupe_window": "duplicate_window",
    "compression": "compression",
    "allow_direct": "allow_direct",
    "allow_rollup": "allow_rollup_hdrs",
    "allow_msg_ttl": "allow_msg_ttl",
    "allow_atomic": "allow_atomic",
    "allow_batched": "allow_batched",
    "deny_delete": "deny_delete",
    "deny_purge": "deny_purge",
}
#: Option -> argument of ``Client.create_stream``.
_LIFTBRIDGE: Final = {
    "subjects": "subject",
    "replicas": "replication_factor",
    "max_age": "retention_max_age",
    "max_bytes": "retention_max_bytes",
    "max_msgs": "retention_max_messages",
    "partitions": "partitions",
    "queue_group": "group",
    "segment_max_bytes": "segment_max_bytes",
    "segment_max_age": "segment_max_age",
    "cleaner_interval": "cleaner_interval",
    "compact": "compact_enabled",
    "min_isr": "min_isr",
    "auto_pause_time": "auto_pause_time",
    "optimistic_concurrency": "optimistic_concurrency",
    "encryption": "encryption",
}
_FLAGS: Final = {"subjects": "--subject"}
_AGE, _SIZE, _COUNT = DurationType(), SizeType(), NumberType(min=-1)
_BOTH: Final = (
    click.option(
        "--subject",
        "subjects",
        multiple=True,
        help="Subject to record, the name of the stream unless set; repeatable for JetStream.",
    ),
    click.option("--replicas", type=NumberType(min=1), help="Servers that hold a copy; 1 unless set."),
    click.option("--max-age", type=_AGE, help="Age at which messages are deleted, such as 7d; 0: never."),
    click.option("--max-bytes", type=_SIZE, help="Bytes to keep, such as 10GB. JetStream: -1 for no limit."),
    click.option("--max-msgs", type=_COUNT, help="Messages to keep. JetStream: -1 for no limit."),
)
_JETSTREAM_OPTIONS: Final = (
    click.option("--description", help="JetStream: text for people."),
    click.option("--storage", type=click.Choice(["file", "memory"]), help="JetStream: kind of storage."),
    click.option(
        "--retention",
        type=click.Choice(["limits", "interest", "workqueue"]),
        help="JetStream: when messages are deleted.",
    ),
    click.option(
        "--discard", type=click.Choice(["old", "new"]), help="JetStream: what gives way in a full stream."
    ),
    click.option("--max-msgs-per-subject", type=_COUNT, help="JetStream: messages to keep per subject."),
    click.option("--max-msg-size", type=_SIZE, help="JetStream: largest message."),
    click.option("--dupe-window", type=_AGE, help="JetStream: time for which message ids are remembered."),
    click.option("--compression", type=click.Choice(["none", "s2"]), help="JetStream: compression of files."),
    click.option("--allow-direct/--no-allow-direct", default=None, help="JetStream: reads by any replica."),
    click.option("--allow-rollup/--no-allow-rollup", default=None, help="JetStream: rollup headers."),
    click.option("--allow-msg-ttl/--no-allow-msg-ttl", default=None, help="JetStream: TTL per message."),
    click.option("--allow-atomic/--no-allow-atomic", default=None, help="JetStream: atomic batches."),
    click.option("--allow-batched/--no-allow-batched", default=None, help="JetStream: fast batches."),
    click.option("--deny-delete/--no-deny-delete", default=None, help="JetStream: no message is deleted."),
    click.option("--deny-purge/--no-deny-purge", default=None, help="JetStream: no purging."),
    config_option,
)
_LIFTBRIDGE_OPTIONS: Final = (
    # More partitions than that by mistake would end a Liftbridge server: it opens files for each at once.
    click.option(
        "--partitions",
        type=NumberType(min=1, max=10_000),
        help="Liftbridge: partitions, up to 10,000.  [default: 1]",
    ),
    click.option("--queue-group", help="Liftbridge: NATS queue group of the partitions."),
    click.option("--segment-max-bytes", type=_SIZE, help="Liftbridge: size of a segment of the log."),
    click.option("--segment-max-age", type=_AGE, help="Liftbridge: age at which a segment is full."),
    click.option("--cleaner-interval", type=_AGE, help="Liftbridge: time between runs of the cleaner."),
    click.option("--compact/--no-compact", default=None, help="Liftbridge: keep the last message per key."),
    click.option("--min-isr", type=NumberType(min=1), help="Liftbridge: in-sync replicas for acks."),
    click.option("--auto-pause-time", type=_AGE, help="Liftbridge: idle time after which to pause."),
    click.option(
        "--optimistic-concurrency/--no-optimistic-concurrency",
        default=None,
        help="Liftbridge: check expected offsets.",
    ),
    click.option("--encryption/--no-encryption", default=None, help="Liftbridge: encrypt values on disk."),
)


#: Adds the options of a new stream, of both kinds.
settings_options: Final = with_options(*_BOTH, *_JETSTREAM_OPTIONS, *_LIFTBRIDGE_OPTIONS)
#: Adds the options of a JetStream stream.
edit_options: Final = with_options(*_BOTH, *_JETSTREAM_OPTIONS)


def _renamed(options: Mapping[str, Any], names: Mapping[str, str], kind: str) -> dict[str, Any]:
    """Return the options that were given, under the names of an API.

    Raises:
        UsageError: An option is for the other kind of servers.
    """
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    for name in given.keys() - names.keys():
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        raise UsageError(f"{flag} must be left out, because {kind} has no such setting")
    return {names[name]: value for name, value in given.items()}


def jetstream_config(name: str, options: dict[str, Any], base: StreamConfig | None = None) -> StreamConfig:
    """Return a JetStream configuration: of a file, or of an existing stream, with options on top.

    Raises:
        UsageError: An option is for Liftbridge, or a value is invalid.
    """
    from liftenvelope.jetstream import StreamConfig

    file = options.pop("config_file", None)
    fields = _renamed(options, _JETSTREAM, "JetStream")
    found: dict[str, Any] = {} if base is None else base.to_json()
    if file is not None:
        found |= read_config(file)
    return overlaid(StreamConfig, found, {"name": name, **fields})


def liftbridge_settings(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``Client.create_stream``.

    Raises:
        UsageError: An option is for JetStream, or there is more than one subject.
    """
    settings = _renamed(options, _LIFTBRIDGE, "Liftbridge")
    subjects = settings.pop("subject", (name,))
    if len(subjects) > 1:
        raise UsageError(f"--subject must be given once for Liftbridge, got {len(subjects)} subjects")
    return {"subject": subjects[0], "name": name, **settings}
