"""Root group of the command line."""

from __future__ import annotations

import gc
from difflib import get_close_matches
from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from liftenvelope._version import __version__

#: Commands of other modules, each with its line in the help. A module is imported when its command is used:
#: to import all of them takes a second, also at each press of the Tab key.
_ELSEWHERE: Final = {
    "account": "Show limits and use of an account (JetStream).",
    "archive": "Write streams into files or tables, each message once, until SIGTERM.",
    "backup": "Copy STREAM of JetStream into FOLDER as a snapshot of the server.",
    "bench": "Measure publishing and reading on your servers.",
    "consumer": "List, create, change, read and delete consumers (JetStream).",
    "cursor": "Read and set cursors: positions of readers (Liftbridge).",
    "decode": "Show the fields of an envelope or an ack.",
    "demo": "Publish envelopes on NATS to the gateway or a Liftbridge server, and verify every ack.",
    "dev": "Start NATS, a gateway, the monitor and demo traffic for development, until Ctrl-C.",
    "doctor": "Check the servers, the connection and settings that lose data; nothing is changed.",
    "group": "List, describe, reset and delete consumer groups: those over NATS, and Liftbridge's own.",
    "monitor": "Serve a live page about streams, consumers and groups, until Ctrl-C.",
    "publish": "Publish a message and show its ack.",
    "read": "Read STREAM in exact ranges of offsets.",
    "restore": "Restore STREAM of JetStream from FOLDER, a backup or an archive.",
    "serve": "Serve the Liftbridge API, with every stream in JetStream.",
    "stream": "List, create, change and delete streams.",
    "subscribe": "Show the messages of STREAM as they arrive, until Ctrl-C.",
    "tail": "Show the messages of STREAM as they arrive, until Ctrl-C.",
    "top": "Show streams, rates, groups and lag, live in the terminal.",
    "write": "Publish rows to STREAM in order and wait for all acks.",
}
#: Modules of commands with another name.
_MODULES: Final = {"tail": "subscribe"}


class _Root(click.Group):
    """Group that imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        name = _MODULES.get(cmd_name, cmd_name)
        found: click.Command = getattr(import_module(f"liftenvelope.cli.{name}"), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments, or suggest one: click knows only those that are imported."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            near = get_close_matches(name, self.list_commands(ctx), 1)
            ctx.fail(f"No such command {name!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._help_of(ctx, name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self._help_of(ctx, name)) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def _help_of(self, ctx: click.Context, name: str) -> str:
        own = super().get_command(ctx, name)
        return _ELSEWHERE[name] if own is None else own.get_short_help_str()


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="liftenvelope")
def root() -> None:
    """Durable, keyed, acknowledged messages over NATS."""
    if not gc.isenabled():  # the command is imported
        gc.freeze()
        gc.enable()


@root.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    Add one of these lines to the start-up file of the shell:

    \b
    eval "$(liftenvelope completion bash)"
    eval "$(liftenvelope completion zsh)"
    liftenvelope completion fish | source
    """  # noqa: D301 - click knows the control character alone
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "liftenvelope", "_LIFTENVELOPE_COMPLETE").source())
