"""Names of options in the errors of calls, which name the arguments of the call."""

from __future__ import annotations

import re
from typing import Final

import click

__all__ = ["with_option_name"]

#: Argument of a call -> names of the options that set it.
_ARGUMENTS: Final = {
    "expected_last_sequence": ("expected_sequence",),
    "nats_url": ("url",),
    "opt_start_time": ("start", "deliver"),
    "partition": ("partitions",),
    "retentionMaxMessages": ("max_msgs",),
    "sequence": ("seq", "to_sequence"),
    "source": ("url",),
    "start": ("to_datetime",),
    "until": ("duration",),
}


def with_option_name(text: str) -> str:
    """Return the text of an error with the option in place of the argument that it begins with."""
    name, _, rest = text.partition(" ")
    context = click.get_current_context(silent=True)
    if context is None or not rest.startswith("must "):
        return text
    # Settings of Liftbridge have names such as retentionMaxAge.
    snake = re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name).removeprefix("retention_")
    names = (name, snake, *_ARGUMENTS.get(name, ()))
    for one in context.command.params:
        if one.name in names:
            return f"{one.opts[0] if isinstance(one, click.Option) else one.human_readable_name} {rest}"
    return text
