"""The session of docs/command.md prints what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from liftenvelope.testing import run_gateway
from tests.integration.cli.commands import run

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "command.md").read_text("utf-8")
SESSION = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d+")


def without_times(text: str) -> str:
    return TIME.sub("TIME", text)


def test_session_prints_what_the_page_shows() -> None:
    (session,) = SESSION
    steps = [step.partition("\n") for step in session.removeprefix("$ ").split("\n$ ")]
    assert len(steps) > 8
    with run_gateway() as cluster:
        url = f"liftbridge://{cluster.addresses[0]}"
        for command, _, expected in steps:
            if command.startswith("export "):
                assert command == "export LIFTENVELOPE_URL=liftbridge://127.0.0.1:9292"
                continue
            program, *arguments = shlex.split(command)
            assert program == "liftenvelope"
            done = run(*arguments, "--timeout", "60", LIFTENVELOPE_URL=url)
            assert done.exit_code == 0, done.output
            assert without_times(done.stdout.rstrip("\n")) == without_times(expected.rstrip("\n"))
