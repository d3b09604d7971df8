"""``liftenvelope read`` and ``write``, on real servers."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import liftenvelope
from liftenvelope import bulk
from liftenvelope.cli._root import root
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import jetstream, make_stream, numbered, publish, wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with jetstream() as running:
        make_stream(running.url, "numbers")
        publish(running.url, numbered("numbers", 100))
        yield running


@pytest.fixture
def url(server: NatsServer) -> str:
    return server.url


def run(*arguments: str, text: str | bytes | None = None, **env: str) -> Result:
    return CliRunner().invoke(root, list(arguments), input=text, env=env)


def test_onto_the_terminal(url: str) -> None:
    done = run("read", "numbers", "--start", "10", "--stop", "13", LIFTENVELOPE_URL=url)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["offset"] for row in rows] == [10, 11, 12]
    assert rows[0]["value"] == "10" + "." * 20
    assert rows[0]["subject"] == "numbers.1"
    assert rows[0]["timestamp"].endswith("Z")
    assert set(rows[0]) == {"value", "headers", "offset", "timestamp", "partition", "subject"}


def test_messages_that_retention_took_end_a_read_or_are_skipped(url: str, name: str) -> None:
    make_stream(url, name, max_msgs=2)
    publish(url, numbered(name, 5))
    words = ("read", name, "--start", "1", "--columns", "offset", "--url", url)
    done = run(*words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith("read from --start 3 or 'earliest', or with --on-retention skip\n")
    done = run(*words, "--on-retention", "skip")
    assert (done.exit_code, done.stdout) == (0, '{"offset": 3}\n{"offset": 4}\n')


@contextmanager
def writing_from_a_pipe(url: str, name: str, text: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """``write`` with a pipe that stays open, once the one row in ``text`` is stored."""
    make_stream(url, name)
    words = ("write", name, "--url", url, "--subject", f"{name}.x")
    with started(*words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.flush()
        wait_for("the row is stored", lambda: bulk.count(url, name) == 1)
        yield process


def test_rows_of_a_pipe_are_stored_while_it_pauses(url: str, name: str) -> None:
    with writing_from_a_pipe(url, name, b'{"value": "1"}\n') as process:
        _, told = process.communicate(b'{"value": "2"}\n')
        assert (process.returncode, told) == (0, b"2 rows stored, 0 of them before\n")


def test_ctrl_c_counts_the_rows_of_a_pipe(url: str, name: str) -> None:
    with writing_from_a_pipe(url, name, b'{"value": "1"}\n{"val') as process:
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
        assert (process.returncode, told) == (130, b"1 row stored, 0 of them before\n\ninterrupted\n")


def offsets(*arguments: str) -> list[int]:
    done = run("read", "numbers", *arguments)
    assert done.exit_code == 0, done.output
    return [json.loads(line)["offset"] for line in done.stdout.splitlines()]


def test_start_from_the_end_and_limit(url: str, tmp_path: Path) -> None:
    assert offsets("--url", url, "--start", "-3") == [97, 98, 99]
    assert offsets("--url", url, "-s", "-1000", "-n", "2") == [0, 1]
    assert offsets("--url", url, "--start", "1h", "--limit", "1") == [0]
    assert offsets("--url", url, "--follow", "--limit", "1") == [99]  # the newest, unless told
    assert offsets("--url", url, "--follow", "--start", "-2", "--limit", "2") == [98, 99]
    target = tmp_path / "some.parquet"
    assert run("read", "numbers", "--url", url, "--limit", "7", "--to", str(target)).stderr == "7 rows\n"
    assert len(offsets("--url", url, "--limit", "9" * 20)) == 100
    assert pq.read_table(target).num_rows == 7
    assert run("read", "numbers", "--url", url, "--limit", "7", "--json", "--to", str(target)).exit_code == 2
    assert len(run("read", "numbers", "--url", url, "--limit", "7", "--json").stdout.splitlines()) == 7
    refused = run("read", "numbers", "--url", url, "--limit", "7", "--to", f"{tmp_path}/")
    assert refused.exit_code == 2
    assert "--limit needs a file or -" in refused.output


@pytest.mark.parametrize("subject", [(), ("--subject", "created.{}")])
def test_write_creates_the_stream(url: str, name: str, subject: tuple[str, ...]) -> None:
    options = ("write", name, "--url", url, "--create", *(one.format(name) for one in subject))
    for count in (1, 2):  # the second run finds the stream
        done = run(*options, text='{"value": "a"}\n')
        assert done.exit_code == 0, done.output
        assert len(run("read", name, "--url", url).stdout.splitlines()) == count


def test_hostile_values_do_not_control_the_terminal(url: str, name: str) -> None:
    hostile = "\x9b31m \u202eabc \x7f"
    make_stream(url, name)
    publish(url, [(f"{name}.x", hostile.encode(), None)])
    shown = run("read", name, "--url", url).stdout
    assert shown.rstrip("\n").isprintable()
    assert json.loads(shown)["value"] == hostile


def test_into_files(url: str, tmp_path: Path) -> None:
    for file in ("out.parquet", "out.ndjson"):
        done = run("read", "numbers", "--url", url, "--to", str(tmp_path / file), "--columns", "offset,value")
        assert done.exit_code == 0, done.output
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["offset", "value"]
    assert table["offset"].to_pylist() == list(range(100))
    lines = (tmp_path / "out.ndjson").read_text().splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(100))


def test_into_a_folder(url: str, tmp_path: Path) -> None:
    for added in ("100 rows in 2 files", "0 rows in 0 files"):
        done = run("read", "numbers", "--url", url, "--to", f"{tmp_path}/new/", "--rotate-rows", "60")
        assert done.exit_code == 0, done.output
        assert added in done.stderr
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_from_files(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    assert run("read", "numbers", "--url", url, "--to", f"{tmp_path}/a.parquet").exit_code == 0
    done = run("write", name, "--url", url, "--from", f"{tmp_path}/a.parquet", "--subject", f"{name}.x")
    assert done.exit_code == 0, done.output
    assert "100 rows stored" in done.stderr
    lines = '{"value": "text", "headers": {"A": "1"}}\n\n{"value_base64": "/w=="}\n'
    for before in ("0 of them", "2 of them"):
        done = run("write", name, "--url", url, "--subject", f"{name}.y", "--message-id", "job", text=lines)
        assert done.exit_code == 0, done.output
        assert before in done.stderr
    table = bulk.read(url, name, start=100).read_all()
    assert table["value"].to_pylist() == [b"text", b"\xff"]
    assert dict(table["headers"].to_pylist()[0])["A"] == b"1"
    done = run("read", name, "--url", url, "--start", "latest")
    assert json.loads(done.stdout)["value_base64"] == "/w=="


def test_payloads(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    orders, copy = tmp_path / "orders.parquet", tmp_path / "copy.parquet"
    rows = pa.table({"id": [1, 2], "lines": [[{"price": Decimal("1.5")}], None]})
    pq.write_table(rows, orders)
    arguments = ("--url", url, "--subject", f"{name}.x", "--from", str(orders))
    run("write", name, *arguments, "--payload", "json")
    run("write", name, *arguments, "--payload", "arrow")
    lines = run(
        "read", name, "--url", url, "--payload", "json", "--on-bad", "column", "--columns", "id,lines"
    )
    first, second, bad = [json.loads(line) for line in lines.stdout.splitlines()]
    assert (first, second) == ({"id": 1, "lines": [{"price": "1.5"}]}, {"id": 2})
    assert bad["bad_reason"] == "no JSON object"
    run("read", name, "--url", url, "--payload", "arrow", "--start", "2", "--to", str(copy))
    assert pq.read_table(copy).select(["id", "lines"]).equals(rows)
    lines = run("read", name, "--url", url, "--payload", "arrow", "--start", "2")
    assert json.loads(lines.stdout.splitlines()[0]) == {"offset": 2, "row": 0, **first}


def test_modes(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name, allow_atomic=True)
    assert run("read", "numbers", "--url", url, "--to", f"{tmp_path}/a.parquet").exit_code == 0
    origin = ("--from", f"{tmp_path}/a.parquet", "--subject", f"{name}.x")
    done = run("write", name, "--url", url, *origin, "--mode", "atomic")
    assert done.exit_code == 0, done.output
    first = bulk.read(url, name).read_all()["headers"].to_pylist()[0]
    assert dict(first)["Nats-Batch-Sequence"] == b"1"
    done = run("write", name, "--url", url, *origin, "--mode", "fast")
    assert done.exit_code == 2
    assert "set allow_batched in its config" in done.output


def test_liftbridge(liftbridge_server: LiftbridgeCluster, name: str) -> None:
    address = liftbridge_server.addresses[0]
    with liftenvelope.connect_blocking(address) as client:
        client.create_stream(name, name, partitions=2)
    lines = "".join(f'{{"key": "k{i}", "value": "{i}", "partition": {i % 2}}}\n' for i in range(10))
    assert run("write", name, "--url", f"liftbridge://{address}", text=lines).exit_code == 0
    done = run("read", name, "--url", f"liftbridge://{address}", "--partition", "1")
    assert [json.loads(line)["key"] for line in done.stdout.splitlines()] == ["k1", "k3", "k5", "k7", "k9"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["read", "x"], 2, "--url"),
        (["read", "x", "--url", "ftp://a"], 2, "ftp://a"),
        (["read", "x", "--url", "nats://a", "--start", "soon"], 2, "'soon'"),
        (["read", "x", "--url", "nats://a", "--follow", "--to", "x.parquet"], 2, "--follow"),
        (["read", "x", "--url", "nats://a", "--rotate-rows", "5"], 2, "folder"),
        (["read", "x", "--url", "nats://a", "--to", "x.csv"], 2, "--to must be a .parquet file, or .ndjson"),
        (
            ["write", "x", "--url", "nats://a", "--from", "x.csv"],
            2,
            "--from must be a .parquet file, or .ndjson",
        ),
        (["read", "x", "--url", "nats://a", "--columns", ""], 2, "got ''"),
        (["write", "x", "--url", "nats://a", "--payload", "json"], 2, "--payload needs --from"),
        (["read", "x", "--url", "nats://a", "--to", ""], 2, "--to must not be empty, got ''"),
        (
            ["read", "x", "--url", "nats://a", "--follow", "--rotate-rows", "5"],
            2,
            "leave out --stop, --rotate",
        ),
        (["write", "x", "--url", "nats://a", "--from", "a\udcff.parquet"], 2, "'a\\udcff.parquet'"),
        (["read", "x", "--url", "nats://127.0.0.1:1"], 1, "can't connect"),
        (["write", "x", "--url", "nats://127.0.0.1:1", "--from", "missing.parquet"], 2, "'missing.parquet'"),
    ],
)
def test_wrong_calls(arguments: list[str], code: int, text: str) -> None:
    done = run(*arguments, LIFTENVELOPE_URL="")
    assert done.exit_code == code
    assert text in done.output


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("no json", "line 1 must be JSON"),
        ("[]", "line 1 must be a JSON object, got list"),
        ("{}", "line 1 must have 'value' or 'value_base64'"),
        ('{"value": 1}', "'value' must be text"),
        ('{"value_base64": "?"}', "'value' must be text, or base64"),
        ('{"value": "", "headers": 1}', "headers must be an object"),
        ('{"value": "", "headers": {"a": 1}}', "'a' must be text"),
        ('{"value": "", "partition": "x"}', "partition must be a number"),
        ('{"value": "", "subject": "\\ud800"}', "line 1: subject must not contain a lone surrogate"),
        (
            '{"value": "", "headers": {"\\ud800": "a"}}',
            "line 1: header name must not contain a lone surrogate",
        ),
        ("[" * 200_000, "line 1 must be JSON: maximum recursion depth exceeded"),
        ('{"value": "", "subject": 1}', "subject must be text"),
    ],
)
def test_lines_that_are_wrong(url: str, line: str, text: str) -> None:
    done = run("write", "numbers", "--url", url, "--subject", "numbers.x", text=line)
    assert done.exit_code == 2
    assert text in done.output


def test_a_byte_order_mark_and_ends_of_lines_of_windows(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    (tmp_path / "a.ndjson").write_bytes(b'\xef\xbb\xbf{"value": "\xc3\xa4"}\r\n{"value": "b"}\r\n')
    done = run("write", name, "--url", url, "--subject", f"{name}.x", "--from", f"{tmp_path}/a.ndjson")
    assert done.exit_code == 0, done.output
    assert bulk.read(url, name).read_all()["value"].to_pylist() == ["ä".encode(), b"b"]


def test_bytes_that_are_no_text(url: str) -> None:
    lines = b'{"value": "a"}\n{"value": "\xff"}\n'
    done = run("write", "numbers", "--url", url, "--subject", "numbers.x", text=lines)
    assert done.exit_code != 0
    assert "line 2 must be UTF-8, got invalid start byte at byte 11" in done.output
    assert "value_base64" in done.output


def test_no_such_stream(url: str) -> None:
    done = run("read", "nothing", "--url", url)
    assert done.exit_code == 1
    assert "there is no stream 'nothing'" in done.output


def test_empty_inputs(url: str, name: str, tmp_path: Path) -> None:
    make_stream(url, name)
    done = run("write", name, "--url", url, "--subject", f"{name}.x", text="")
    assert (done.exit_code, done.stderr) == (0, "0 rows stored, 0 of them before\n")
    for to in ("-", f"{tmp_path}/a.parquet", f"{tmp_path}/a/", f"{tmp_path}/a.ndjson"):
        done = run("read", name, "--url", url, "--to", to)
        assert (done.exit_code, done.stdout) == (0, "")
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 0


@contextmanager
def started(*arguments: str, **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process of its own."""
    command = [sys.executable, "-W", "error", "-m", "liftenvelope", *arguments]
    with subprocess.Popen(command, env={**os.environ, "TERM": "xterm"}, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_nobody_reads_what_it_prints_any_more(url: str, name: str) -> None:
    make_stream(url, name)
    publish(url, numbered(name, 5_000, 200))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started("read", name, "--url", url, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["offset"] == 0
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_error_about_a_huge_value_is_short(url: str) -> None:
    done = run("write", "numbers", "--url", url, text=json.dumps({"value": list(range(100_000))}))
    assert done.exit_code == 2
    assert "line 1: 'value' must be text, or base64, got [0, 1, " in done.output
    assert len(done.output) < 500


@pytest.mark.parametrize("arguments", [["read"], ["read", "--to", "a.parquet"], ["read", "--to", "a/"]])
def test_path_that_is_not_utf_8(
    url: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    done = run(*arguments, "numbers", "--url", url)
    assert (done.exit_code, "Traceback" in done.stderr) == (0, False)


def test_folder_that_is_not_utf_8(url: str, tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff/")
    done = run("read", "numbers", "--url", url, "--to", folder)
    assert done.exit_code == 2
    assert "path must be in UTF-8 for a Parquet file" in done.output
    assert run("read", "numbers", "--url", url, "--to", f"{tmp_path}/\udcff.parquet").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "end", "text"),
    [
        (["read", "numbers"], ">&-", "--to must be a path, because standard output is closed, got -"),
        (["write", "numbers"], "<&-", "--from must be a path, because standard input is closed, got -"),
        (["read", "numbers"], ">/dev/full", "Error: [Errno 28] No space left on device"),
        (["--help"], ">/dev/full", "Error: [Errno 28] No space left on device"),
        (["--version"], ">/dev/full", "Error: [Errno 28] No space left on device"),
        (["completion", "bash"], ">/dev/full", "Error: [Errno 28] No space left on device"),
        (["demo", "--messages", "1"], ">/dev/full", "Error: [Errno 28] No space left on device"),
        (["serve", "--nats", "{url}", "--listen", "127.0.0.1:0"], ">/dev/full", "Error: [Errno 28] No space"),
    ],
)
def test_closed_and_full_standard_streams(url: str, arguments: list[str], end: str, text: str) -> None:
    words = [word.format(url=url) for word in (sys.executable, "-m", "liftenvelope", *arguments)]
    done = subprocess.run(
        f"{shlex.join(words)} {end}",
        shell=True,
        env={**os.environ, "LIFTENVELOPE_URL": url},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == (2 if text.startswith("--") else 1)
    assert text in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("interruptible")
def test_interrupt_ends_a_read_that_follows(url: str) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started("read", "numbers", "--url", url, "--follow", **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().strip() == b"interrupted"
        assert process.wait(60) == 130


def test_progress_is_for_terminals(url: str, tmp_path: Path) -> None:
    options = ("read", "numbers", "--url", url, "--stop", "50", "--to")
    assert run(*options, f"{tmp_path}/a.parquet").stderr == "50 rows\n"
    ours, theirs = pty.openpty()
    with started(*options, f"{tmp_path}/b.parquet", stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # how the end of a terminal looks
            pass
        os.close(ours)
        assert process.wait(60) == 0
    assert b"numbers 100%" in shown
    assert b"50 rows" in shown


def test_write_reports_in_json(url: str, name: str) -> None:
    rows = '{"value": "a"}\n{"value": "b"}\n'
    done = run("write", name, "--create", "--json", "--url", url, text=rows)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"stream": name, "acked": 2, "duplicates": 0}
    assert done.stderr == ""
