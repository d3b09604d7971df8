"""``liftenvelope publish --lines``, on nats-server, Liftbridge and the gateway."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, run_nats_server
from tests.integration.cli.commands import error_of, json_of, lines_of, run, started, text_of


def values_in(stream: str, *options: str) -> list[str]:
    """Values of all messages of a stream."""
    found = lines_of("tail", stream, "--start", "earliest", "--no-follow", *options)
    return [message["value"] for message in found]


def numbers(count: int) -> str:
    return "".join(f"{number}\n" for number in range(count))


def test_hundred_thousand_lines_are_stored_in_order_in_jetstream(nats_url: str, stream: str) -> None:
    at = ("--url", nats_url)
    done = text_of("publish", f"{stream}.a", "--lines", *at, given=numbers(100_000))
    assert done == "stored 100,000 lines\n"
    assert values_in(stream, *at) == [str(number) for number in range(100_000)]


def test_twenty_thousand_lines_are_stored_in_order_in_liftbridge(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    assert text_of("publish", name, "--lines", *at, given=numbers(20_000)) == "stored 20,000 lines\n"
    assert values_in(name, *at) == [str(number) for number in range(20_000)]


def test_empty_standard_input_stores_nothing(nats_url: str, stream: str, at: tuple[str, str]) -> None:
    for options in (("--url", nats_url), at):
        assert text_of("publish", stream, "--lines", *options, given="") == "stored 0 lines\n"
    assert text_of("publish", stream, "--lines", "--json", *at, given="") == ""


def test_last_line_without_line_end_and_empty_lines_are_messages(
    nats_url: str, stream: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n\nthree")
    send = ("publish", f"{stream}.a", "--lines", "--file", str(path), "--url", nats_url)
    assert text_of(*send) == "stored 3 lines\n"
    assert values_in(stream, "--url", nats_url) == ["one", "", "three"]


def test_keys_before_a_delimiter(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    send = ("publish", name, "--lines", "--key-delimiter", "::", "--header", "unit=C", *at)
    text_of(*send, given="k::v\nplain\n::no key\na::b::c\n")
    found = lines_of("tail", name, "--start", "earliest", "--no-follow", *at)
    assert [(one.get("key"), one["value"]) for one in found] == [
        ("k", "v"),
        (None, "plain"),
        (None, "no key"),
        ("a", "b::c"),
    ]
    assert {one["headers"]["unit"] for one in found} == {"C"}


def test_envelopes_on_nats(
    cluster: LiftbridgeCluster | GatewayCluster, at: tuple[str, str], name: str
) -> None:
    text_of("stream", "create", name, *at)
    send = ("publish", name, "--lines", "--envelope", "-K", "\t", "--url", cluster.nats_url)
    assert text_of(*send, given="k\t1\nk\t2\n") == "stored 2 lines\n"
    assert values_in(name, *at) == ["1", "2"]


def test_json_has_a_record_for_each_line(nats_url: str, stream: str) -> None:
    done = text_of("publish", f"{stream}.a", "--lines", "--json", "--url", nats_url, given="a\nb\n")
    assert [json.loads(line) for line in done.splitlines()] == [
        {"line": number, "outcome": "acked", "stream": stream, "sequence": number, "duplicate": False}
        for number in (1, 2)
    ]


def test_line_that_is_too_long_ends_publishing(nats_url: str, stream: str) -> None:
    send = ("publish", f"{stream}.a", "--lines", "--url", nats_url)
    done = run(*send, "--max-line-bytes", "5", given="1\n12345\n123456\n4\n")
    assert done.exit_code == 1
    assert "line 3 must be at most 5 bytes" in done.stderr
    assert "2 acked, 0 refused, 0 unknown. Line 3 and those after it were not published" in done.stderr
    assert values_in(stream, "--url", nats_url) == ["1", "12345"]
    default = run(*send, given="x" * (1024 * 1024 + 1))
    assert "line 1 must be at most 1,048,576 bytes" in default.stderr


def test_line_larger_than_the_server_accepts_is_refused(name: str) -> None:
    with run_nats_server(jetstream=True, max_payload=1_000) as server:
        text_of("stream", "create", name, "--url", server.url)
        done = run("publish", name, "--lines", "--url", server.url, given=f"1\n{'x' * 1_001}\n3\n")
    assert done.exit_code == 1
    assert "line 2 was refused: the message must be at most 1000 bytes" in done.stderr
    assert "1 acked, 1 refused, 0 unknown. Line 3 and" in done.stderr


def test_unknown_stream_refuses_each_line_in_flight(nats_url: str, at: tuple[str, str], name: str) -> None:
    nobody = run("publish", name, "--lines", "--in-flight", "2", "--url", nats_url, given="1\n2\n3\n4\n")
    assert nobody.exit_code == 1
    assert "line 1 was refused" in nobody.stderr
    assert "line 2 was refused" in nobody.stderr
    assert "line 3 " not in nobody.stderr
    assert "0 acked, 2 refused, 0 unknown. Line 3 and" in nobody.stderr
    done = run("publish", name, "--lines", *at, given="1\n2\n")
    assert done.exit_code == 1
    assert "line 1 was refused" in done.stderr
    assert "there is no stream" in done.stderr


def test_server_killed_half_way(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        at = ("--url", server.url)
        text_of("stream", "create", name, *at)
        send = ("publish", name, "--lines", "--json", "--in-flight", "50", "--timeout", "10", *at)
        with started(*send, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(numbers(500).encode())
            process.stdin.flush()
            records = [json.loads(process.stdout.readline()) for _ in range(500)]
            server.kill()
            process.stdin.write(numbers(20).encode())
            process.stdin.flush()  # standard input stays open: the failure alone ends the command
            records += map(json.loads, process.stdout)
            error = process.stderr.read().decode()
            assert process.wait(240) == 1
        assert [record["line"] for record in records] == [*range(1, len(records) + 1)]
        assert {record["outcome"] for record in records[:500]} == {"acked"}
        assert {record["outcome"] for record in records[500:]} == {"unknown"}
        count = len(records) - 500
        assert f"500 acked, 0 refused, {count} unknown. Line {len(records) + 1} and" in error


@pytest.mark.usefixtures("interruptible")
def test_interrupt_tells_the_outcomes(nats_url: str, stream: str) -> None:
    send = ("publish", f"{stream}.a", "--lines", "--json", "--url", nats_url)
    with started(*send, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"one\ntwo\npart")
        process.stdin.flush()
        assert [json.loads(process.stdout.readline())["line"] for _ in range(2)] == [1, 2]
        process.send_signal(signal.SIGINT)
        told = process.stderr.read().decode().split("\n")
        assert process.wait(240) == 130
    assert [*filter(None, told)] == [
        "Note: Lines: 2 acked, 0 refused, 0 unknown. Line 3 and those after it were not published",
        "interrupted",
    ]
    assert json_of("stream", "info", stream, "--url", nats_url)["state"]["messages"] == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("x", "--lines"), "VALUE must be left out with --lines"),
        (("--lines", "--count", "2"), "--count must be 1 with --lines, got 2"),
        (("--lines", "--message-id", "7"), "--message-id must be left out with --lines"),
        (("--lines", "--ack-policy", "none"), "--ack-policy must be leader or all with --lines, got none"),
        (("--lines", "-K", ""), "--key-delimiter must not be empty"),
        (("--lines", "-K", ":"), "--key-delimiter must be left out for JetStream"),
        (("--lines", "-K", ":", "--key", "k"), "--key and --key-delimiter exclude each other"),
        (("--lines", "--max-line-bytes", "0"), "--max-line-bytes must be 1 to 67,108,864 bytes, got 0"),
        (("x", "--in-flight", "5"), "--in-flight needs --lines"),
    ],
)
def test_options_that_exclude_each_other(nats_url: str, options: tuple[str, ...], expected: str) -> None:
    assert expected in error_of("publish", "a", *options, "--url", nats_url, code=2)
