"""``liftenvelope backup``: copies a stream into a folder, with sequences, timestamps and consumers."""

from __future__ import annotations

from typing import Any

import click

from liftenvelope.cli._connecting.servers import json_option, with_source
from liftenvelope.cli._options.places import SizeType, complete_path, fail_cleanly
from liftenvelope.cli._output.terminal import counted, report, shown


@click.command()
@click.argument("stream")
@click.argument("folder", shell_complete=complete_path)
@click.option("--no-consumers", is_flag=True, help="Leave the consumers and their state out.")
@click.option(
    "--max-bytes",
    type=SizeType(),
    help="Most bytes of data to write, such as 10GB; by default by the size of the stream and the free disk.",
)
@json_option
@with_source
def backup(stream: str, folder: str, source: Any, no_consumers: bool, as_json: bool, **how: Any) -> None:
    """Copy STREAM of JetStream into FOLDER as a snapshot of the server.

    The backup keeps sequences, timestamps, headers and consumers. Restore it with `liftenvelope restore` or
    `nats backup restore stream`.
    """

    def work() -> None:
        from liftenvelope import bulk

        with bulk.ProgressBar(shown(stream)) as bar:
            done = bulk.backup(source, stream, folder, consumers=not no_consumers, progress=bar, **how)
        held = f"{counted(done.messages, 'message')} and {counted(done.consumers, 'consumer')}"
        names = ("messages", "consumers", "oldest", "end", "size")
        facts = {name: getattr(done, name) for name in names}
        report(f"{held} in {counted(done.size, 'byte')}", as_json, stream=stream, folder=folder, **facts)

    fail_cleanly(work)
