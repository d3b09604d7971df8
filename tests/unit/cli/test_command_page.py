"""docs/command.md has every command and every option of its tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from liftenvelope.cli._options.places import DurationType
from liftenvelope.cli._root import root

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "command.md").read_text("utf-8")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands(root))


@pytest.mark.parametrize("name", ALL)
def test_command_is_in_the_table(name: str) -> None:
    table = PAGE.split("\n## Commands\n")[1].split("\n## ")[0]
    assert re.search(rf"`{name}[ `]", table)


def test_help_has_the_summary_of_each_command() -> None:
    said = " ".join(CliRunner().invoke(root, ["--help"], terminal_width=200).output.split())
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        assert f" {name} {command.get_short_help_str(200)}" in said


@pytest.mark.parametrize("asked", [{"arguments": ["--help"]}, {"completing": "de"}])
def test_modules_of_commands_are_not_imported_before_they_are_used(asked: dict[str, Any]) -> None:
    code = """
import sys
from liftenvelope.cli._root import root
try:
    root.main(prog_name="liftenvelope")
finally:
    print(sorted(name for name in sys.modules if name.startswith(("nats", "aiohttp", "liftenvelope.cli."))))
"""
    environment = dict(os.environ)
    if "completing" in asked:
        environment |= {
            "COMP_WORDS": f"liftenvelope {asked['completing']}",
            "COMP_CWORD": "1",
            "_LIFTENVELOPE_COMPLETE": "bash_complete",
        }
    done = subprocess.run(
        [sys.executable, "-c", code, *asked.get("arguments", ())],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "decode" in done.stdout
    assert done.stdout.splitlines()[-1] == "['liftenvelope.cli._root']"


def test_table_has_no_other_command() -> None:
    table = PAGE.split("\n## Commands\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z]+(?: [a-z]+(?:-[a-z]+)*)?)", row)]
    assert sorted(named) == sorted(ALL)


@pytest.mark.parametrize(("name", "section"), [("publish", "Publishing"), ("subscribe", "Reading")])
def test_options_are_in_the_table_of_their_section(name: str, section: str) -> None:
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    own = {option for one in ALL[name].params for option in one.opts if option.startswith("--")}
    missing = own - set(re.findall(r"--[a-z-]+", text)) - {"--url", "--context", "--timeout"}
    assert missing == set()


@pytest.mark.parametrize("name", ALL)
def test_help_is_a_sentence(name: str) -> None:
    first = (ALL[name].help or "").strip().splitlines()[0]
    assert first[0].isupper()


def test_help_of_completion_has_a_line_for_each_shell() -> None:
    shown = CliRunner().invoke(root, ["completion", "--help"]).stdout
    for line in (
        'eval "$(liftenvelope completion bash)"',
        'eval "$(liftenvelope completion zsh)"',
        "liftenvelope completion fish | source",
    ):
        assert f"\n  {line}\n" in shown


@pytest.mark.parametrize("name", ALL)
def test_times_are_durations_unless_the_help_names_seconds(name: str) -> None:
    times = [one for one in ALL[name].params if one.name in ("timeout", "interval", "idle", "wait")]
    assert all(isinstance(one.type, DurationType) for one in times)


@pytest.mark.parametrize("name", ALL)
def test_shell_completes_paths(name: str) -> None:
    context = click.Context(ALL[name])
    for one in ALL[name].params:
        if re.search("FILE|PATH|DIR|FOLDER", one.make_metavar(context)):
            assert [item.type for item in one.shell_complete(context, "a")] == ["file"], one.name


def test_every_command_but_completion_can_print_json() -> None:
    without = {name for name in ALL if not any("--json" in one.opts for one in ALL[name].params)}
    assert without == {"completion"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_documented_line_for_completion_prints_a_script(shell: str) -> None:
    section = PAGE.split("\n## Completion\n")[1].split("\n## ")[0]
    (line,) = re.findall(rf"`[^`]*liftenvelope (completion {shell})\b[^`]*`", section)
    done = CliRunner().invoke(root, line.split())
    assert done.exit_code == 0
    assert f"_LIFTENVELOPE_COMPLETE={shell}_complete" in done.stdout
