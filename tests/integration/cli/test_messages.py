"""``liftenvelope publish`` and ``subscribe``, on nats-server, Liftbridge and the gateway."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from liftenvelope.envelope import new_message
from liftenvelope.testing import (
    GatewayCluster,
    LiftbridgeCluster,
    run_gateway,
    run_liftbridge,
    run_nats_server,
)
from tests.integration.cli.commands import error_of, json_of, lines_of, run, started, text_of

HOSTILE = "\x1b]0;owned\x07 \u202eabc \x9b31m"


def test_publish_to_jetstream_shows_the_ack(nats_url: str, stream: str) -> None:
    send = ("publish", f"{stream}.a")
    assert text_of(*send, "one", "--url", nats_url) == f"stored in {stream}, sequence 1\n"
    ack = json_of(*send, "two", "--message-id", "7", "--url", nats_url)
    assert ack == {"stream": stream, "sequence": 2, "duplicate": False}
    again = text_of(*send, "two", "--message-id", "7", "--url", nats_url)
    assert again == f"not stored again: the message id is that of {stream}, sequence 2\n"
    assert "sequence 3" in text_of(*send, "x", "--expected-sequence", "2", "--url", nats_url)
    refused = error_of(*send, "x", "--expected-sequence", "2", "--url", nats_url)
    assert "wrong last sequence: 3" in refused
    assert "no stream records the subject" in error_of("publish", "nobody.a", "x", "--url", nats_url)


@pytest.mark.parametrize(
    ("ttl", "sent"), [("15m", "900000000000ns"), ("2", "2000000000ns"), ("never", "never")]
)
def test_time_to_live_is_a_duration(nats_url: str, name: str, ttl: str, sent: str) -> None:
    text_of("stream", "create", name, "--allow-msg-ttl", "--url", nats_url)
    text_of("publish", name, "x", "--ttl", ttl, "--url", nats_url)
    assert json_of("stream", "get", name, "1", "--url", nats_url)["headers"] == {"Nats-TTL": sent}


def test_dash_is_standard_input(nats_url: str, stream: str) -> None:
    text_of("publish", f"{stream}.a", "-", "--url", nats_url, given="typed")
    [typed] = lines_of("subscribe", stream, "--start", "1", "--limit", "1", "--url", nats_url)
    assert typed["value"] == "typed"


def test_publish_to_liftbridge_shows_the_ack(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, "--partitions", "3", "--optimistic-concurrency", *at)
    send = ("publish", name)
    assert text_of(*send, "a", "--partition", "2", *at) == f"stored in {name}, partition 2, offset 0\n"
    ack = json_of(*send, "b", "--partition", "2", "--ack-policy", "all", *at)
    assert (ack["stream"], ack["partition"], ack["offset"]) == (name, 2, 1)
    assert ack["committed_ns"] > 0
    text_of("stream", "create", f"{name}-plain", *at)
    sent = text_of("publish", f"{name}-plain", "c", "--ack-policy", "none", *at)
    assert sent == "published 1 message without waiting for an ack\n"
    copies = text_of(*send, "d", "--partition", "0", "--count", "3", *at)
    assert copies.startswith(f"stored 3 messages: the first in {name}, partition 0, offset 0, the last in")
    wrong = error_of(*send, "e", "--partition", "2", "--expected-offset", "9", *at)
    assert "expected offset" in wrong
    assert "no partition 7" in error_of(*send, "e", "--partition", "7", *at)
    assert "there is no stream" in error_of("publish", f"{name}-missing", "x", *at)


def test_tail_of_a_gateway_shows_messages_of_megabytes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_bytes(b"v" * 6_000_000)
    limits = {"limits": {"max_message_bytes": 7_000_000}}
    with (
        run_nats_server(jetstream=True, max_payload=8_000_000) as nats,
        run_gateway(nats_server=nats, config=limits) as server,
    ):
        at = ("--url", f"liftbridge://{server.addresses[0]}")
        text_of("stream", "create", name, *at)
        text_of("publish", name, "--file", str(path), "--url", nats.url)
        (shown,) = lines_of("tail", name, "--no-follow", "--start", "earliest", *at)
    assert shown["value"] == "v" * 6_000_000


def test_envelope_on_nats_gets_an_ack(cluster: LiftbridgeCluster | GatewayCluster, name: str) -> None:
    at, nats = ("--url", f"liftbridge://{cluster.addresses[0]}"), ("--url", cluster.nats_url)
    text_of("stream", "create", name, "--partitions", "2", *at)
    options = ("--envelope", "--key", "k", "--header", "unit=C")
    assert text_of("publish", name, "a", *options, *nats) == f"stored in {name}, partition 0, offset 0\n"
    assert json_of("publish", f"{name}.1", "b", *options, *nats)["partition"] == 1
    (first,) = lines_of("subscribe", name, "--partition", "1", "--no-follow", *at)
    assert (first["key"], first["headers"], first["value"]) == ("k", {"unit": "C"}, "b")
    nobody = error_of("publish", f"{name}-missing", "a", "--envelope", "--timeout", "3", *nats)
    assert "no ack came in time" in nobody


def test_envelope_without_ack_needs_no_permission_to_subscribe(name: str) -> None:
    users = [
        {"user": "ann", "password": "x", "permissions": {"publish": [name], "subscribe": {"deny": [">"]}}}
    ]
    with run_nats_server(config={"authorization": {"users": users}}) as server:
        url = server.url.replace("://", "://ann:x@")
        sent = text_of("publish", name, "a", "--envelope", "--ack-policy", "none", "--url", url)
        assert sent == "published 1 message without waiting for an ack\n"
        assert "permissions violation for subscription" in error_of(
            "publish", name, "a", "--envelope", "--url", url
        )


@pytest.mark.parametrize("value", [b"", b"one\ntwo\n", b"\xff\x00\x1b[31m"])
def test_values_from_files_and_standard_input_arrive_unchanged(
    nats_url: str, stream: str, value: bytes, tmp_path: Path
) -> None:
    (tmp_path / "value").write_bytes(value)
    at = ("--url", nats_url)
    text_of("publish", f"{stream}.a", "--file", str(tmp_path / "value"), *at)
    text_of("publish", f"{stream}.a", *at, given=value)
    text_of("publish", f"{stream}.a", "--file", "-", *at, given=value)
    done = run("subscribe", stream, "--start", "earliest", "--no-follow", "--raw", *at)
    assert done.stdout_bytes == (value + b"\n") * 3


def test_failure_of_a_later_copy_says_how_many_came_before(nats_url: str, name: str) -> None:
    at = ("--url", nats_url)
    text_of("stream", "create", name, "--max-msgs", "3", "--discard", "new", *at)
    done = run("publish", name, "x", "--count", "5", *at)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[0] == "Note: 3 of 5 messages were published before"
    assert "maximum messages exceeded" in done.stderr


def test_message_larger_than_the_server_accepts(nats_url: str, stream: str) -> None:
    done = run("publish", f"{stream}.a", "--url", nats_url, given=b"x" * (2 * 1024 * 1024))
    assert done.exit_code == 2
    assert "the message must be at most" in done.stderr


def test_missing_file(nats_url: str) -> None:
    assert "No such file" in error_of("publish", "a", "--file", "/no/such/file", "--url", nats_url, code=2)


def test_starts_in_jetstream(nats_url: str, stream: str) -> None:
    at = ("--url", nats_url)
    for subject in "aab":
        text_of("publish", f"{stream}.{subject}", "x", "--count", "3", *at)
    text_of("stream", "purge", stream, "--subject", f"{stream}.none", "-y", *at)

    def sequences(*arguments: str) -> list[int]:
        return [one["sequence"] for one in lines_of("subscribe", stream, "--no-follow", *arguments, *at)]

    assert sequences() == [9]
    assert sequences("--start", "new") == []
    assert sequences("--start", "earliest") == list(range(1, 10))
    assert sequences("--start", "7") == [7, 8, 9]
    assert sequences("--start", "-2") == [8, 9]
    assert sequences("--start", "-100") == list(range(1, 10))
    assert sequences("--start", "-2", "--subject", f"{stream}.a") == [5, 6]
    assert sequences("--start", "1h", "--limit", "2") == [1, 2]
    assert sequences("--start", "2026-01-01", "--limit", "1") == [1]
    assert sequences("--start", "2100-01-01") == []
    assert sequences("--start", "100") == []


@pytest.mark.parametrize("more", [(), ("--limit", "2"), ("--subject", "*.a")])
def test_read_up_to_the_newest_message_leaves_no_consumer(
    nats_url: str, stream: str, more: tuple[str, ...]
) -> None:
    at = ("--url", nats_url)
    text_of("publish", f"{stream}.a", "x", "--count", "3", *at)
    assert lines_of("tail", stream, "--start", "earliest", "--no-follow", *more, *at)
    assert json_of("stream", "info", stream, *at)["state"]["consumer_count"] == 0


def test_last_messages_of_a_stream_with_gaps(nats_url: str, stream: str) -> None:
    at = ("--url", nats_url)
    text_of("publish", f"{stream}.old", "x", "--count", "3", *at)
    text_of("publish", f"{stream}.gone", "x", "--count", "40", *at)
    text_of("publish", f"{stream}.new", "x", "--count", "2", *at)
    text_of("stream", "purge", stream, "--subject", f"{stream}.gone", "-y", *at)
    found = lines_of("subscribe", stream, "--start", "-4", "--no-follow", *at)
    assert [one["sequence"] for one in found] == [2, 3, 44, 45]


def test_starts_in_liftbridge(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, "--partitions", "2", *at)
    text_of("publish", name, "x", "--partition", "0", "--count", "4", *at)
    text_of("publish", name, "y", "--partition", "1", *at)

    def offsets(*arguments: str) -> list[tuple[int, int]]:
        found = lines_of("tail", name, "--no-follow", *arguments, *at)
        return sorted((one["partition"], one["offset"]) for one in found)

    everything = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert offsets() == [(0, 3), (1, 0)]
    assert offsets("--start", "earliest") == everything
    assert offsets("--start", "-2") == [(0, 2), (0, 3), (1, 0)]
    assert offsets("--start", "-9") == everything
    assert offsets("--start", "2", "--partition", "0") == [(0, 2), (0, 3)]
    assert offsets("--start", "1h") == everything
    assert len(offsets("--start", "earliest", "--limit", "2")) == 2
    assert "no partition 5" in error_of("tail", name, "--partition", "5", *at)
    assert "there is no stream" in error_of("tail", f"{name}-missing", *at)


def test_paused_partition_is_named_and_can_be_woken(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    text_of("publish", name, "x", *at)
    text_of("stream", "pause", name, *at)
    error = error_of("tail", name, "--timeout", "15", *at)
    assert error == f"Error: partition 0 of '{name}' is paused: wake it by --resume, or by a publish"
    assert [one["value"] for one in lines_of("tail", name, "--resume", "--limit", "1", *at)] == ["x"]


def test_hostile_message_does_not_control_the_terminal(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    hostile = ("--key", HOSTILE, "--header", f"a{HOSTILE}={HOSTILE}")
    text_of("publish", name, f"{HOSTILE}\noffset 9  partition 9", *hostile, *at)
    for options in ((), ("--json",)):
        shown = text_of("tail", name, "--limit", "1", *options, *at)
        assert shown.replace("\n", "").isprintable()
        assert not any(line.startswith("offset 9") for line in shown.splitlines())
    found = json.loads(text_of("tail", name, "--limit", "1", "--json", *at))
    assert (found["key"], found["headers"]) == (HOSTILE, {f"a{HOSTILE}": HOSTILE})
    assert HOSTILE in text_of("tail", name, "--limit", "1", "--raw", *at)


def test_repeated_headers_and_envelopes_in_jetstream(nats_url: str, stream: str) -> None:
    at = ("--url", nats_url)
    text_of("publish", f"{stream}.a", "x", "-H", "Tag=1", "-H", "Tag=2", "-H", "Own=3", *at)
    envelope = new_message(b"21.5", key=b"kitchen", headers={"unit": b"C"}, ack_inbox="acks")
    text_of("publish", f"{stream}.b", *at, given=envelope)
    text_of("publish", f"{stream}.c", *at, given=envelope[:-1])
    plain, opened, broken = lines_of("subscribe", stream, "--start", "earliest", "--no-follow", *at)
    assert plain["headers"] == {"Tag": ["1", "2"], "Own": "3"}
    assert (opened["key"], opened["value"], opened["headers"]) == ("kitchen", "21.5", {"unit": "C"})
    assert opened["envelope"] == {"ack_inbox": "acks", "correlation_id": "", "ack_policy": "LEADER"}
    assert "at byte" in broken["malformed_envelope"]
    shown = text_of("subscribe", stream, "--start", "earliest", "--no-follow", *at)
    for text in ("envelope: ack inbox acks", "key=kitchen", "malformed envelope: ", "    21.5"):
        assert text in shown


def test_subscription_shows_messages_as_they_arrive(nats_url: str, at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, "--url", nats_url)
    text_of("stream", "create", name, *at)
    for options in (("--url", nats_url), at):
        with started("tail", name, "--start", "earliest", "--limit", "2", "--json", *options) as process:
            assert process.stdout is not None
            text_of("publish", name, "one", *options)
            assert json.loads(process.stdout.readline())["value"] == "one"
            text_of("publish", name, "two", *options)
            assert json.loads(process.stdout.readline())["value"] == "two"
            assert process.wait(240) == 0


def test_reader_of_the_output_that_leaves(nats_url: str, stream: str) -> None:
    text_of("publish", f"{stream}.a", "x" * 1000, "--count", "1000", "--url", nats_url)
    with started("tail", stream, "--start", "earliest", "--no-follow", "--url", nats_url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(240) == 1


@pytest.mark.usefixtures("interruptible")
def test_interrupt_ends_a_subscription(nats_url: str, stream: str, at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    text_of("publish", name, "x", *at)
    text_of("publish", f"{stream}.a", "x", "--url", nats_url)
    for options in (("--url", nats_url), at):
        with started("tail", name, *options) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.stderr.read().strip() == b"interrupted"
            assert process.wait(240) == 130


def test_subscription_goes_on_after_a_restart_of_the_server(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        at = ("--url", server.url)
        text_of("stream", "create", name, *at)
        text_of("publish", name, "one", *at)
        with started("tail", name, "--limit", "2", "--json", *at) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["value"] == "one"
            server.stop()
            server.start()
            text_of("publish", name, "two", *at)
            assert json.loads(process.stdout.readline())["value"] == "two"
            assert process.wait(240) == 0


def test_subscription_ends_if_the_server_does_not_come_back(name: str) -> None:
    with run_nats_server(jetstream=True) as server:
        at = ("--url", server.url)
        text_of("stream", "create", name, *at)
        text_of("publish", name, "one", *at)
        with started("tail", name, "--json", *at) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            server.stop()
            assert process.wait(240) == 1
            said = process.stderr.read().decode().splitlines()
    # A server that stops ends JetStream first, and may still say so to the pull.
    assert said.count("Note: the connection is lost, reconnecting") == 1
    lost = f"Error: the connection to NATS at {server.url} was lost and not regained in half a minute"
    assert said[-1] == f"{lost}: start the server, and run the command again"


def test_each_loss_of_a_liftbridge_server_is_told_once(name: str) -> None:
    with run_liftbridge() as cluster:
        at = ("--url", f"liftbridge://{cluster.addresses[0]}")
        text_of("stream", "create", name, *at)
        text_of("publish", name, "one", *at)
        with started("tail", name, "--limit", "2", "--raw", *at) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"one\n"
            cluster.stop()
            cluster.start()
            text_of("publish", name, "two", *at)
            assert process.stdout.readline() == b"two\n"
            assert process.wait(240) == 0
            told = process.stderr.read().decode().splitlines()
    assert told == ["Note: partition 0 is lost, reconnecting", "Note: partition 0 is back"]


def test_deleted_stream_ends_a_subscription(at: tuple[str, str], name: str) -> None:
    text_of("stream", "create", name, *at)
    text_of("publish", name, "x", *at)
    with started("tail", name, *at) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        deleting = threading.Thread(target=text_of, args=("stream", "rm", name, "--yes", *at))
        deleting.start()
        error = process.stderr.read().decode()
        deleting.join()
        assert process.wait(240) == 1
    assert error.startswith("Error: ")
    assert "deleted" in error
    assert "Traceback" not in error


def test_messages_of_a_stream_that_allows_one_consumer(nats_url: str, name: str, tmp_path: Path) -> None:
    at, config = ("--url", nats_url), tmp_path / "stream.json"
    config.write_text('{"max_consumers": 1}')
    text_of("stream", "create", name, "--subject", f"{name}.*", "--config", str(config), *at)
    for subject in "aab":
        text_of("publish", f"{name}.{subject}", "x", *at)
    found = lines_of("tail", name, "--start", "earliest", "--subject", f"{name}.a", "--no-follow", *at)
    assert [one["sequence"] for one in found] == [1, 2]
