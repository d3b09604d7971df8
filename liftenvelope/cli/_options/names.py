"""Names of options in the errors of calls, which name the arguments of the call."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

import click

from liftenvelope._checks import with_options

__all__ = ["with_option_names"]

#: Argument of a call -> names of the options that set it.
_ARGUMENTS: Final = {
    "expected_last_sequence": ("expected_sequence",),
    "expires": ("wait",),
    "group": ("queue_group",),
    "nats_url": ("url",),
    "num_replicas": ("replicas",),
    "opt_start_time": ("start", "deliver"),
    "partition": ("partitions",),
    "replication_factor": ("replicas",),
    "retentionMaxMessages": ("max_msgs",),
    "sequence": ("seq", "to_sequence"),
    "source": ("url",),
    "stream": ("name", "target"),
    "subject": ("subjects", "filters", "pattern", "last_for", "target"),
    "start": ("to_datetime",),
    "until": ("duration",),
}
#: Advice for callers of a function -> the same for users of the command.
_ADVICE: Final = {
    "a bulk.DeadLetter": "--dead-letter",
    "give a longer timeout in bulk.Access if its disk is slow": "its disk may be slow",
    "restore a backup by restore_backup": "give the folder of a backup",
    "give the format a prefix='...'": "give --payload a prefix, such as "
    """'{"format": "json", "prefix": "p_"}'""",
    "the argument stream": "STREAM",
    ": raise max_listed of JetStream if there are so many": ", the most that the command lists",
    ": raise max_message_bytes (in Spark, maxMessageBytes)": ", the most that the command reads",
    ": raise max_request_bytes of connect() if the server accepts more": ", the most that the command sends",
    ": raise max_request_bytes (in Spark, maxRequestBytes) if the server accepts more": (
        ", the most that the command sends"
    ),
    "; max_message_bytes is": "; the most that the command reads is",
}


def with_option_names(text: str) -> str:
    """Return the text of an error with options of the command in place of the arguments that it names."""
    context = click.get_current_context(silent=True)
    if context is None:
        return text
    for advice, own in _ADVICE.items():
        text = text.replace(advice, own)
    return with_options(text, partial(_option, context.command), between=" ")


def _option(command: click.Command, name: str) -> str | None:
    """Return the option or the argument of a command that sets an argument of a call."""
    # Settings of Liftbridge have names such as retentionMaxAge.
    snake = re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name).removeprefix("retention_")
    names = (name, snake, *_ARGUMENTS.get(name, ()))
    for one in command.params:
        if one.name in names:
            return one.opts[0] if isinstance(one, click.Option) else one.human_readable_name
    return None
