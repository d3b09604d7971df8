"""Names of options in the errors of calls, which name the arguments of the call."""

from __future__ import annotations

import re
from typing import Final

import click

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
    "the argument stream": "STREAM",
}
#: A quoted value, which stays as it is; an argument with a value, such as ``on_bad='column'``, or without the
#: value, such as ``columns=``; a name of several words, such as ``max_bytes``.
_WORDS: Final = re.compile(
    r"""(?<![\w=])(?P<quoted>'[^'\n]*'|"[^"\n]*")"""
    r"""|(?<![\w.$-])(?P<argument>[a-z]+(?:_[a-z]+)*)=(?:'(?P<text>[^'\n]*)'|\.\.\.|(?P<plain>\w*))"""
    r"""|(?<![\w.$/=-])(?P<name>[a-z]+(?:_[a-z]+)+)(?![\w=(/[]|\.\w)"""
)


def with_option_names(text: str) -> str:
    """Return the text of an error with options in place of the arguments that it names.

    The first word of ``NAME must ...`` is an argument also if it is a single word.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return text
    command = context.command
    for advice, own in _ADVICE.items():
        text = text.replace(advice, own)
    name, space, rest = text.partition(" ")
    first = _option(command, name) if rest.startswith("must ") else None
    if first is not None:
        rest = re.sub("^must be None ", "must be left out ", rest)
        return f"{first}{space}{_WORDS.sub(lambda found: _replaced(command, found), rest)}"
    return _WORDS.sub(lambda found: _replaced(command, found), text)


def _replaced(command: click.Command, found: re.Match[str]) -> str:
    name = found["argument"] or found["name"]
    if name is None:
        return found[0]
    option = _option(command, name)
    if found["name"]:
        return option or name
    value = found["text"] or found["plain"]
    if option is None:  # a setting of the server, without Python's word for it
        return name if value == "True" else found[0]
    return option if value in (None, "", "True") else f"{option} {value}"


def _option(command: click.Command, name: str) -> str | None:
    """Return the option or the argument of a command that sets an argument of a call."""
    # Settings of Liftbridge have names such as retentionMaxAge.
    snake = re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name).removeprefix("retention_")
    names = (name, snake, *_ARGUMENTS.get(name, ()))
    for one in command.params:
        if one.name in names:
            return one.opts[0] if isinstance(one, click.Option) else one.human_readable_name
    return None
