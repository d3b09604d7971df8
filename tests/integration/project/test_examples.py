"""Everything that the documentation shows is run: the examples, and every block of Python in the pages.

test_documented_programs.py runs the blocks that are programs. In one file, all of it would keep one worker of
pytest-xdist busy for minutes after the others have finished.

docs/index.md tells readers what the three kinds of blocks are. The doctests that start servers run here as
well; tests/unit/project/test_doctests.py has the others.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from nats.aio.client import Client

import liftenvelope
import liftenvelope.client
import liftenvelope.testing
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.testing import LiftbridgeCluster

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: tests/spark runs the others.
WITHOUT_SPARK = [example for example in EXAMPLES if not example.stem.startswith("spark")]
FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
#: Parsers of blocks that are data.
PARSERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
OUTPUT = re.compile(r"\n\s*```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FRAGMENT_NAMES = {
    "nc": "Client",
    "inbox": "AckInbox",
    "publisher": "EnvelopePublisher",
    "cluster": "LiftbridgeCluster",
    "client": "liftenvelope.Client",
}
FRAGMENT_HEAD = f"""
import liftenvelope
from nats.aio.client import Client
from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.testing import LiftbridgeCluster
async def fragment({", ".join(f"{name}: {kind}" for name, kind in FRAGMENT_NAMES.items())}) -> None:
""".lstrip()

#: What a block may have from those before it; tests/spark runs them.
SPARK_HEAD = """
from typing import Any
spark: Any
orders: Any
events: Any
""".lstrip()


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``output`` is what the block of text after it says that it prints."""

    page: Path
    line: int
    info: str
    text: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.line}"

    def as_module(self) -> str:
        """The source as a module of its own; a fragment becomes a function."""
        if self.info == "python spark":
            return SPARK_HEAD + self.text
        if self.info != "python fragment":
            return self.text
        return FRAGMENT_HEAD + textwrap.indent(self.text, "    ")


def blocks(page: Path) -> Iterator[Block]:
    source = page.read_text("utf-8")
    for match in FENCE.finditer(source):
        follower = OUTPUT.match(source, match.end())
        line = source.count("\n", 0, match.start()) + 1
        yield Block(page, line, match["info"].strip(), match["text"], follower[1] if follower else None)


ALL = [block for page in PAGES for block in blocks(page)]


def of_kind(info: str) -> list[Block]:
    return [block for block in ALL if block.info == info]


def run(*command: str | Path, cwd: Path, timeout: float = 500) -> str:
    """Run Python and return what it printed; warnings are errors."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_pytest(file: Path, folder: Path) -> str:
    """Run a test file as a user would: not with this project's configuration, and without other plugins."""
    return run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:asyncio",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        folder,
        file,
        cwd=folder,
    )


def test_there_is_something_to_check() -> None:
    assert len(EXAMPLES) >= 5
    for info in ("python", "python pytest", "python fragment"):
        assert of_kind(info), info
    assert {block.info for block in ALL} <= {
        *("python", "python pytest", "python fragment", "python spark"),
        "python story",  # test_tutorial.py
        *("text", "sh", "sql", "mermaid", ""),
        "console",  # tests/integration/cli/test_documented_session.py
        *PARSERS,
    }


@pytest.mark.parametrize("block", [block for info in PARSERS for block in of_kind(info)], ids=str)
def test_data_can_be_parsed(block: Block) -> None:
    assert PARSERS[block.info](block.text)


@pytest.mark.parametrize("example", WITHOUT_SPARK, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    source = example.read_text("utf-8")
    assert source.count("\n") < 80
    if example.name.startswith("test_"):
        copy = tmp_path / example.name
        copy.write_text(source, "utf-8")
        assert " passed" in run_pytest(copy, tmp_path)
    else:
        assert run(example, cwd=tmp_path).strip()


@pytest.mark.parametrize("block", of_kind("python fragment"), ids=str)
async def test_fragment(block: Block, liftbridge_server: LiftbridgeCluster, lb_nc: Client) -> None:
    # Blank lines in front, so that a traceback shows the line of the page.
    head = FRAGMENT_HEAD.splitlines()
    source = "\n".join(["; ".join(head[:-1]), head[-1]]) + "\n" + textwrap.indent(block.text, "    ")
    tree = ast.increment_lineno(ast.parse(source, str(block.page)), block.line - 2)
    namespace: dict[str, Any] = {}
    exec(compile(tree, str(block.page), "exec"), namespace)
    assert inspect.iscoroutinefunction(namespace["fragment"])
    with streams(liftbridge_server):
        async with AckInbox(lb_nc) as inbox, asyncio.timeout(120):
            publisher = EnvelopePublisher(lb_nc, "orders", inbox=inbox)
            async with liftenvelope.connect(liftbridge_server.addresses) as client:
                await namespace["fragment"](lb_nc, inbox, publisher, liftbridge_server, client)


@contextlib.contextmanager
def streams(cluster: LiftbridgeCluster) -> Iterator[None]:
    """The streams that fragments may use."""
    cluster.create_stream("orders")
    cluster.create_stream("accounts", optimistic_concurrency=True)
    try:
        yield
    finally:
        cluster.delete_stream("orders")
        cluster.delete_stream("accounts")


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text("utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", FENCE.sub("", target.read_text("utf-8")), re.MULTILINE)
            assert anchor in map(slug, headings), link


def test_commands_and_extras_exist() -> None:
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(re.findall(r"'\.\[([a-z]+)\]'", text)) <= set(project["optional-dependencies"])


SERVER_MODULES = [
    name
    for package in (liftenvelope.testing, liftenvelope.client)
    for name in (
        package.__name__,
        *(found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")),
    )
]


@pytest.mark.parametrize("name", SERVER_MODULES)
def test_doctests_with_servers(name: str) -> None:
    assert doctest.testmod(import_module(name), raise_on_error=False).failed == 0
