"""The command line: what it prints, and how it exits."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

import liftenvelope
from liftenvelope.cli import demo as command
from liftenvelope.cli._demo_job import CodecTimes, DemoReport, Job
from liftenvelope.cli._root import root
from liftenvelope.errors import UsageError


def run(
    *arguments: str, code: str | None = None, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    start = ["-m", "liftenvelope"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, "-W", "error", *start, *arguments],
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100", **environment},
        input=given,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def sentences(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(option: str) -> None:
    done = run(option)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: liftenvelope ")
    assert {"completion", "demo", "serve"} <= set(re.findall(r"^  ([a-z]+) ", done.stdout, re.MULTILINE))


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"liftenvelope, version {liftenvelope.__version__}\n"


def test_help_of_the_demo() -> None:
    done = run("demo", "--help")
    assert done.returncode == 0
    for option in ("--messages", "--size", "--window", "--url", "--liftbridge"):
        assert option in done.stdout
    assert "100000" in done.stdout  # the defaults are shown


#: Arguments of a call that is refused, and a part of the text that says why.
WRONG_CALLS: list[tuple[list[str], str]] = [
    (["nosuch"], "No such command 'nosuch'"),
    (["publsh"], "No such command 'publsh'. Did you mean 'publish'?"),
    (["--nosuch"], "No such option"),
    (["demo", "--nosuch"], "No such option"),
    (["demo", "--messages", "many"], "'many' is not a valid integer"),
    (["demo", "--messages", "0"], "--messages must be from 1 to 1,000,000,000, got 0"),
    (["demo", "--size", "15"], "--size must be from 16 to 67,108,864, got 15"),
    (["demo", "--window", "-1"], "--window must be from 1 to 1,000,000, got -1"),
    (["demo", "--size", "99999999999"], "--size must be from 16 to 67,108,864, got 99999999999"),
    (["demo", "--url", "nats://127.0.0.1:1"], "--url and --liftbridge go together"),
    (["demo", "--liftbridge", "127.0.0.1:1"], "--url and --liftbridge go together"),
    (["demo", "--url", "nats://127.0.0.1:1", "--liftbridge", "nohost"], "address must be host:port, got"),
    (["demo", "extra"], "unexpected extra argument"),
    (["demo", "--broker", "kafka"], "'kafka' is not one of"),
    (["serve", "--nats", "nats://x", "--data-dir", "/x"], "--nats and --data-dir exclude each other"),
    (["serve", "--data-dir", ""], "--data-dir must be a path in UTF-8 and not empty, got ''"),
    (
        ["serve", "--data-dir", "a\udcff"],
        "--data-dir must be a path in UTF-8 and not empty, got 'a\\udcff'",
    ),
    (["serve", "--id", "a\udcff"], "--id must not contain a lone surrogate"),
    (["serve", "--nats", ""], "--nats must be a URL such as nats://host:4222, got ''"),
    (["serve", "--nats-creds", "x"], "--nats-creds needs --nats"),
    (["serve", "--nats-inbox-prefix", "x"], "--nats-inbox-prefix needs --nats"),
    (["serve", "--nats-domain", "x"], "--nats-domain needs --nats"),
    (["serve", "--nats-log", "x"], "--nats-log needs --nats"),
    (
        ["serve", "--nats", "nats://127.0.0.1:1", "--nats-log", "/no/such"],
        "--nats-log must be a file that can be read",
    ),
    (
        ["serve", "--nats", "nats://127.0.0.1:1", "--nats-domain", "a.b"],
        "--nats-domain must not have a '.', got 'a.b'",
    ),
    (
        ["serve", "--limit", "max_conections=5"],
        "'max_conections=5' must be NAME=VALUE, with one of the names",
    ),
    (["serve", "--limit", "max_connections"], "allowed_ack_inboxes, consumer_inactivity, control_frame_"),
    (["serve", "--limit", "max_connections=0"], "max_connections must be at least 1, got 0"),
    (["serve", "--limit", "max_connections=x"], "max_connections must be an integer, got 'x'"),
    (["serve", "--limit", "idle_timeout=x"], "idle_timeout must be a number of seconds, got 'x'"),
    (
        ["serve", "--limit", "idle_timeout=0"],
        "idle_timeout must be a positive number of seconds, got 0.0",
    ),
    (
        ["serve", "--limit", "max_message_bytes=5", "--max-message", "5"],
        "'max_message_bytes=5' and --max-message are the same limit",
    ),
    (["serve", "--listen", "nohost"], "address must be host:port, got"),
    (["serve", "--nats-listen", "nohost"], "address must be host:port, got"),
    (["serve", "--tls-cert", "x"], "give both or neither"),
    (["serve", "--replicas", "many"], "'many' is not a valid integer"),
    (
        ["read", "ORDERS", "--url", "nats://127.0.0.1:1", "--to", "s3://bucket/a/"],
        "--to must be a path of the local",
    ),
    (
        ["read", "ORDERS", "--url", "nats://127.0.0.1:1", "--to", "gs://b/a.ndjson"],
        "got 'gs://b/a.ndjson'",
    ),
    (
        ["write", "ORDERS", "--url", "nats://127.0.0.1:1", "--from", "s3://b/a.parquet"],
        "--from must be a path",
    ),
    *(
        ([*words, "nohost"], f"'{words[-1]}': must be host:port, got 'nohost'")
        for words in (["dev", "--listen"], ["dev", "--http"], ["monitor", "--http"], ["archive", "--http"])
    ),
    (["completion"], "Missing argument"),
    (["completion", "tcsh"], "'tcsh' is not one of"),
    ([], "Usage: liftenvelope"),
]
# A process for each call would take half a second to import what it needs.
_RUN_ALL = """
import io, json, sys
from liftenvelope.cli import main

for sys.argv[1:] in json.loads(sys.stdin.read()):
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    try:
        main()
        status = None
    except SystemExit as exc:
        status = exc.code
    texts = []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    print(json.dumps([status, *texts]), file=sys.__stdout__)
"""


@pytest.fixture(scope="module")
def refused() -> list[list[object]]:
    """Exit code, standard output and standard error of each wrong call, all made in one process."""
    calls = json.dumps([arguments for arguments, _ in WRONG_CALLS])
    done = run(code=_RUN_ALL, given=calls)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(WRONG_CALLS)), ids=[shlex.join(call) for call, _ in WRONG_CALLS])
def test_a_wrong_call_exits_with_2_and_says_why(refused: list[list[object]], number: int) -> None:
    status, output, errors = refused[number]
    assert (status, output) == (2, "")
    assert WRONG_CALLS[number][1] in str(errors)
    assert "Traceback" not in str(errors)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nats://user:secret@host:4222"],
        ["read", "orders", "nats://user:secret@host:4222"],
        ["serve", "--nats-url-file", "nats://user:secret@host:4222"],
        ["read", "orders", "--partition", "nats://user:secret@host:4222"],
    ],
)
def test_url_in_the_wrong_place_is_shown_without_its_password(arguments: list[str]) -> None:
    done = run(*arguments, LIFTENVELOPE_URL="nats://host")
    assert done.returncode == 2
    assert "nats://host:4222" in done.stderr
    assert "secret" not in done.stderr


def test_limits_of_the_command_line() -> None:
    from liftenvelope.cli._serving.limits import parse_limits
    from liftenvelope.gateway import Limits

    assert parse_limits([]) == (Limits(), {})
    given = ["max_connections=5", "idle_timeout=1.5", "allowed_ack_inboxes=_INBOX.,acks."]
    expected = Limits(max_connections=5, idle_timeout=1.5, allowed_ack_inboxes=("_INBOX.", "acks."))
    assert parse_limits(given)[0] == expected
    assert parse_limits(["allowed_ack_inboxes="], 7)[0] == Limits(allowed_ack_inboxes=(), max_message_bytes=7)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = run("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_LIFTENVELOPE_COMPLETE" in done.stdout
    asked = run(
        COMP_WORDS="liftenvelope de", COMP_CWORD="1" if shell != "fish" else "de",
        _LIFTENVELOPE_COMPLETE=f"{shell}_complete",
    )  # fmt: skip
    assert asked.returncode == 0
    assert "demo" in asked.stdout


def without(module: str) -> str:
    """A program that runs the command line as if a module were not installed."""
    return f"import sys; sys.modules[{module!r}] = None; from liftenvelope.cli import main; main()"


@pytest.mark.parametrize("arguments", [["--version"], ["demo"]])
@pytest.mark.parametrize("module", ["click", "rich"])
def test_without_the_cli_extra(module: str, arguments: list[str]) -> None:
    done = run(*arguments, code=without(module))
    assert (done.returncode, done.stdout) == (1, "")
    assert sentences(done.stderr) == [
        f"liftenvelope: this needs {module}: run pip install 'liftenvelope[cli]'"
    ]


@pytest.mark.parametrize("module", ["h2", "google.protobuf"])
def test_without_the_client_extra(module: str) -> None:
    done = run("demo", "--messages", "1", code=without(module))
    assert (done.returncode, done.stdout) == (1, "")
    (error,) = [line for line in sentences(done.stderr) if "Error" in line]
    assert module.rpartition(".")[2] in error
    assert "pip install 'liftenvelope[client]'" in error
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("fault", [{"lost": 1}, {"contiguous": False}, {"read_back": False}, {}])
def test_the_demo_exits_with_1_if_anything_is_lost(
    monkeypatch: pytest.MonkeyPatch, fault: dict[str, object]
) -> None:
    good: dict[str, object] = {"published": 10, "seconds": 0.1, "lost": 0, "contiguous": True}
    good |= {"read_back": True, "p50": 0.001, "p99": 0.002, "slowest": 0.003}
    times = (CodecTimes("encode a message", 100.0, 1000.0),)

    async def run_demo(job: Job, **_: object) -> DemoReport:
        return DemoReport(codec=times, **{**good, **fault})  # type: ignore[arg-type]

    monkeypatch.setattr(command, "run_demo", run_demo)
    done = CliRunner().invoke(root, ["demo", "--messages", "10"])
    assert done.exit_code == (1 if fault else 0)
    assert ("not safe" in done.output.lower()) is bool(fault)
    assert "encode a message" in done.output
    assert "10.0x" in done.output


def test_an_interrupt_exits_with_130() -> None:
    code = (
        "from liftenvelope.cli import demo, main\n"
        "def interrupted(*args): raise KeyboardInterrupt\n"
        "demo._run = interrupted\n"
        "main()"
    )
    done = run("demo", code=code)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": 0},
        {"size": 1},
        {"window": 0},
        {"nats_url": "nats://localhost"},
        {"liftbridge": "a:1"},
        {"broker": "x"},
    ],
)
def test_a_job_is_checked_before_anything_starts(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Job(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_command_runs_with_closed_output(closed: str) -> None:
    envelope = base64.b64encode(liftenvelope.new_message(b"tea")).decode()
    command = f'exec "$0" -W error -m liftenvelope decode {envelope} {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("tea" in done.stdout) == (closed == "2>&-")


def test_terminated_command_cleans_up() -> None:
    code = """
import time
from liftenvelope.cli import main
from liftenvelope.cli._root import root

@root.command()
def wait():
    try:
        print("waiting", flush=True)
        while True:  # a signal between Python's last look for one and a sleep does not end that sleep
            time.sleep(0.05)
    finally:
        print("cleaned up", flush=True)

main()
"""
    with subprocess.Popen([sys.executable, "-c", code, "wait"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.terminate()
        assert process.stdout.read() == "cleaned up\n"
        assert process.wait(60) == 143


def test_command_collects_garbage() -> None:
    code = """
import gc
from liftenvelope.cli import main
from liftenvelope.cli._root import root

@root.command()
def show():
    print(gc.isenabled(), gc.get_freeze_count() > 10_000)

main()
"""
    done = subprocess.run([sys.executable, "-c", code, "show"], check=True, capture_output=True, text=True)
    assert done.stdout == "True True\n"
