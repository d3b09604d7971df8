"""Settings of ``liftenvelope consumer create`` and ``edit``: options, and their names in JetStream's API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from liftenvelope.cli._options.lists import with_options
from liftenvelope.cli._options.places import DurationType, NumberType, SizeType, StartType
from liftenvelope.cli._streams.config_changes import config_option, overlaid, read_config
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    from liftenvelope.jetstream import ConsumerConfig

__all__ = ["changed_consumer", "create_options", "edit_options", "new_consumer"]


_DURATION, _SIZE, _COUNT = DurationType(), SizeType(), NumberType(min=-1)
#: Option -> policy of a priority group.
_POLICIES: Final = {
    "pinned_group": "pinned_client",
    "overflow_group": "overflow",
    "prioritized_group": "prioritized",
}
_PERCENT: Final = re.compile(r"\d{1,3}%?", re.ASCII)
#: Option -> field of JetStream's configuration, if the names differ.
_FIELDS: Final = {"replicas": "num_replicas", "sample": "sample_freq"}


def _split(_: click.Context, __: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Return the durations of ``--backoff``; none of them for the word ``none``."""
    if value is None or value == "none":
        return None if value is None else ()
    return tuple(_DURATION.convert(one.strip(), None, None) for one in value.split(","))


def _percent(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if not value or (_PERCENT.fullmatch(value) and int(value.removesuffix("%")) <= 100):
        return value
    raise click.BadParameter(f"must be a percentage such as 30%, up to 100%, got {value!r}")


def _pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _value in pairs:
        if not name or not equals:
            raise click.BadParameter(f"must be NAME=VALUE, got {name!r}")
    return {name: value for name, _, value in pairs}


_BOTH: Final = (
    click.option("--filter", "filters", multiple=True, help="Deliver only this subject; repeatable."),
    click.option("--description", help="Text for people."),
    click.option("--ack-wait", type=_DURATION, help="Time until redelivery; 30s unless set."),
    click.option(
        "--backoff",
        metavar="TIMES",
        callback=_split,
        help="Times until redelivery after the first, second, ... delivery, such as 1s,10s,1m; none: no such "
        "times. They replace --ack-wait.",
    ),
    click.option("--max-deliver", type=_COUNT, help="Deliveries of one message; -1: no limit."),
    click.option(
        "--max-pending", "max_ack_pending", type=_COUNT, help="Messages delivered and without an ack."
    ),
    click.option("--inactive-threshold", type=_DURATION, help="Idle time after which to delete it."),
    click.option(
        "--replicas",
        type=NumberType(min=0),
        help="Servers that hold its state; 0: as many as for the stream.",
    ),
    click.option(
        "--sample", metavar="PERCENT", callback=_percent, help="Acks to report as advisories, such as 30%."
    ),
    click.option("--headers-only/--no-headers-only", default=None, help="Deliver no payloads."),
    click.option("--max-batch", type=_COUNT, help="Most messages of a pull."),
    click.option("--max-expires", type=_DURATION, help="Longest time that a pull may wait."),
    click.option("--max-bytes", type=_SIZE, help="Most bytes of a pull."),
    click.option("--pinned-group", metavar="GROUP", help="Priority group whose messages one client gets."),
    click.option("--overflow-group", metavar="GROUP", help="Priority group for clients that take overflow."),
    click.option(
        "--prioritized-group", metavar="GROUP", help="Priority group that serves its pulls by priority."
    ),
    click.option(
        "--metadata",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_pairs,
        help="Value for your own use; repeatable.",
    ),
    config_option,
)
_CREATE: Final = (
    click.option(
        "--deliver",
        type=StartType("all", "new", "last", "last-per-subject"),
        help="First message: all, new, last, last-per-subject, a sequence, a time, or an age such as 1h.  "
        "[default: all]",
    ),
    click.option(
        "--ack",
        "ack_policy",
        type=click.Choice(["explicit", "all", "none"]),
        help="How messages are acknowledged.  [default: explicit]",
    ),
    click.option("--max-waiting", type=NumberType(min=0), help="Pulls that may wait."),
    click.option("--memory", "mem_storage", is_flag=True, default=None, help="Keep its state in memory."),
    click.option("--ephemeral", is_flag=True, help="Delete the consumer when nobody uses it."),
)
_EDIT: Final = (
    click.option("--no-filter", is_flag=True, help="Deliver all subjects."),
    click.option("--no-group", is_flag=True, help="End the priority group."),
    click.option("--remove-metadata", metavar="NAME", multiple=True, help="Metadata to remove; repeatable."),
)


#: Adds the options of a new consumer.
create_options: Final = with_options(*_CREATE, *_BOTH)
#: Adds the options that an existing consumer can change.
edit_options: Final = with_options(*_BOTH, *_EDIT)


def new_consumer(name: str, options: dict[str, Any]) -> ConsumerConfig:
    """Return the configuration of a new pull consumer: of a file, with options on top.

    Raises:
        UsageError: A value is invalid.
    """
    from liftenvelope.jetstream import ConsumerConfig

    durable = None if options.pop("ephemeral") else name
    base = _base(options)
    fields = {"name": name, "durable_name": durable, **_start(options.pop("deliver"))}
    fields |= _metadata(base.get("metadata", {}), options)
    return overlaid(ConsumerConfig, base, {**fields, **_fields(options)})


def changed_consumer(old: ConsumerConfig, options: dict[str, Any]) -> ConsumerConfig:
    """Return the configuration of a consumer with options in place of its settings.

    Raises:
        UsageError: A value is invalid, or two options exclude each other.
    """
    from liftenvelope.jetstream import ConsumerConfig

    own = {"name", "durable_name"}
    file = {field: value for field, value in _base(options).items() if field not in own}
    base = {**old.to_json(), **file}
    removed = _removed(options)
    fields = {**removed, **_metadata(base.get("metadata", {}), options)}
    given = _fields(options)
    for flag, field in (("--no-filter", "filter_subjects"), ("--no-group", "priority_groups")):
        if field in removed and field in given:
            raise UsageError(
                f"{flag} must be left out, because there is a new value, got {given[field][0]!r}"
            )
    fields |= given
    if "ack_wait" in fields and fields.get("backoff", old.backoff):
        raise UsageError("--ack-wait must be left out, because backoff replaces it: set --backoff, or none")
    return overlaid(ConsumerConfig, base, fields)


def _removed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that options without a value reset."""
    from liftenvelope.jetstream import PriorityPolicy

    fields: dict[str, Any] = {}
    if options.pop("no_filter"):
        fields |= {"filter_subject": None, "filter_subjects": ()}
    if options.pop("no_group"):
        fields |= {"priority_groups": (), "priority_policy": PriorityPolicy.NONE, "priority_timeout": None}
    return fields


def _metadata(old: Mapping[str, str], options: dict[str, Any]) -> dict[str, Any]:
    """Return the field ``metadata`` if options add or remove some."""
    added, removed = options.pop("metadata"), options.pop("remove_metadata", ())
    if not added and not removed:
        return {}
    if not isinstance(old, Mapping):
        raise UsageError(f"metadata of --config must be an object, got {type(old).__name__}")
    for name in removed:
        if name not in old:
            raise UsageError(f"--remove-metadata must be a name of the consumer's metadata, got {name!r}")
    return {"metadata": {**{name: value for name, value in old.items() if name not in removed}, **added}}


def _base(options: dict[str, Any]) -> Mapping[str, Any]:
    file = options.pop("config_file")
    return {} if file is None else read_config(file)


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the options that were given."""
    from liftenvelope.jetstream import PriorityPolicy

    groups = {option: group for option in _POLICIES if (group := options.pop(option)) is not None}
    found: dict[str, Any] = {}
    if len(groups) > 1:
        flags = " and ".join(f"--{one.replace('_', '-')}" for one in groups)
        raise UsageError(f"{flags} exclude each other; leave one of them out")
    for option, group in groups.items():
        found |= {"priority_policy": PriorityPolicy(_POLICIES[option]), "priority_groups": (group,)}
    if filters := options.pop("filters"):
        found |= {"filter_subject": None, "filter_subjects": filters}
    given = {name: value for name, value in options.items() if value is not None}
    return found | {_FIELDS.get(name, name): value for name, value in given.items()}


def _start(place: Any) -> dict[str, Any]:
    from liftenvelope.jetstream import DeliverPolicy

    if place is None:
        return {}
    fields = {"opt_start_seq": None, "opt_start_time": None}
    if isinstance(place, str):
        return {**fields, "deliver_policy": DeliverPolicy(place.replace("-", "_"))}
    if isinstance(place, int):
        if place < 1:
            raise UsageError(f"--deliver must be a sequence of 1 or more, a time or a word, got {place}")
        return {**fields, "deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": place}
    moment = datetime.now(UTC) - place if isinstance(place, timedelta) else place
    return {**fields, "deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": moment}
