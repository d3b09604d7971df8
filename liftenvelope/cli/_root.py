"""Root group of the command line."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from liftenvelope._version import __version__
from liftenvelope.cli.archive import archive
from liftenvelope.cli.bench import bench
from liftenvelope.cli.consumer import consumer
from liftenvelope.cli.cursor import cursor
from liftenvelope.cli.decode import decode
from liftenvelope.cli.demo import demo
from liftenvelope.cli.dev import dev
from liftenvelope.cli.doctor import doctor
from liftenvelope.cli.group import group
from liftenvelope.cli.monitor import monitor
from liftenvelope.cli.publish import publish
from liftenvelope.cli.read import read
from liftenvelope.cli.serve import serve
from liftenvelope.cli.stream import stream
from liftenvelope.cli.subscribe import subscribe
from liftenvelope.cli.top import top
from liftenvelope.cli.write import write


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="liftenvelope")
def root() -> None:
    """Durable, keyed, acknowledged messages over NATS."""


@root.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    r"""Print the completion script for SHELL.

    \b
    bash, zsh:  eval "$(liftenvelope completion bash)"
    fish:       liftenvelope completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "liftenvelope", "_LIFTENVELOPE_COMPLETE").source())


root.add_command(stream)
root.add_command(publish)
root.add_command(subscribe)
root.add_command(subscribe, "tail")
root.add_command(decode)
root.add_command(consumer)
root.add_command(cursor)
root.add_command(group)
root.add_command(bench)
root.add_command(demo)
root.add_command(dev)
root.add_command(doctor)
root.add_command(top)
root.add_command(serve)
root.add_command(monitor)
root.add_command(read)
root.add_command(write)
root.add_command(archive)
