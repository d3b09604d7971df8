"""The programs and commands of the tutorial and the start page, in order, as a reader runs them."""

from __future__ import annotations

import re
import shlex
import urllib.request
from pathlib import Path

from tests.integration.cli.commands import run as run_command
from tests.integration.cli.commands import started
from tests.integration.cli.test_dev import FREE, facts_of, stop
from tests.integration.project.test_examples import ROOT, Block, blocks, run

PAGE = ROOT / "docs" / "tutorial.md"
START = ROOT / "docs" / "start.md"
STORY = [block for block in blocks(PAGE) if block.info in ("sh", "python story")]
#: Addresses that the page names, by the name of the fact.
ADDRESSES = {"nats": "nats://127.0.0.1:4222", "gateway": "liftbridge://127.0.0.1:9292"}


def test_pages_with_a_story_are_the_start_and_the_tutorial() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "```python story" in page.read_text("utf-8")]
    assert sorted(pages) == [START, PAGE]


def places_of(facts: dict[str, str]) -> dict[str, str]:
    """Return the addresses that run now by those that the pages name."""
    places = {shown: facts[name] for name, shown in ADDRESSES.items()}
    return places | {shown.partition("//")[2]: real.partition("//")[2] for shown, real in places.items()}


def program_of(block: Block, places: dict[str, str], folder: Path) -> Path:
    """Write a block into a file, with the addresses that run now."""
    text = re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], block.text)
    program = folder / f"program_{block.line}.py"
    program.write_text(text, "utf-8")
    return program


def command(line: str, gateway: str) -> None:
    """Run a line of the shell. The test starts the servers itself, and has exported the URL."""
    words = shlex.split(line)
    if words[:2] == ["liftenvelope", "dev"] or words[0] == "export":
        return
    assert words[0] == "liftenvelope"
    done = run_command(*words[1:], "--timeout", "60", LIFTENVELOPE_URL=gateway)
    assert done.exit_code == 0, done.output


def test_tutorial(tmp_path: Path) -> None:
    with started("dev", *FREE, "--rate", "0") as servers:
        facts = facts_of(servers)
        places = places_of(facts)
        for block in STORY:
            if block.info == "sh":
                for line in block.text.splitlines():
                    command(line, facts["gateway"])
                continue
            assert run(program_of(block, places, tmp_path), cwd=tmp_path) == block.output, block
        with urllib.request.urlopen(facts["monitor"], timeout=240) as page:
            assert b"<html" in page.read()
        stop(servers)


def test_table_of_the_start_page(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(START) if block.info == "python story")
    with started("dev", *FREE) as servers:
        printed = run(program_of(block, places_of(facts_of(servers)), tmp_path), cwd=tmp_path)
        assert "degrees" in printed
        stop(servers)
