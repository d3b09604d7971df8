"""``liftenvelope consumer next``, on nats-server."""

from __future__ import annotations

import json
import signal

import pytest

from liftenvelope.testing import run_nats_server
from tests.integration.cli.commands import error_of, json_of, lines_of, run, started, text_of


@pytest.fixture
def at(nats_url: str) -> tuple[str, str]:
    return "--url", nats_url


@pytest.fixture
def consumer(at: tuple[str, str], stream: str) -> tuple[str, str]:
    """Stream and name of a consumer of five messages."""
    text_of("publish", f"{stream}.a", "-", "--lines", *at, given="v1\nv2\nv3\nv4\nv5\n")
    text_of("consumer", "create", stream, "worker", "--max-pending", "3", *at)
    return stream, "worker"


def values(lines: list[dict[str, object]]) -> list[object]:
    return [one["value"] for one in lines]


def test_next_shows_messages_and_acks_them(at: tuple[str, str], consumer: tuple[str, str]) -> None:
    done = run("consumer", "next", *consumer, *at)
    assert (done.exit_code, done.stderr) == (0, "Note: acked 1 message\n")
    assert done.stdout.splitlines()[0].startswith("sequence 1  20")
    assert done.stdout.splitlines()[-1] == "    v1"
    # More than max_ack_pending: each ack makes room for another message.
    found = lines_of("consumer", "next", *consumer, "--count", "4", *at)
    assert values(found) == ["v2", "v3", "v4", "v5"]
    assert {(one["deliveries"], one["response"]) for one in found} == {(1, "ack")}
    info = json_of("consumer", "info", *consumer, *at)
    assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (5, 0)


def test_naked_messages_are_redelivered_and_terminated_ones_are_not(
    at: tuple[str, str], consumer: tuple[str, str]
) -> None:
    take = ("consumer", "next", *consumer, "--count", "2")
    done = run(*take, "--nak", "--raw", *at)
    assert (done.stdout, done.stderr) == ("v1\nv2\n", "Note: returned 2 messages\n")
    assert "delivery 2" in text_of(*take, "--nak", *at)
    again = lines_of(*take, "--term", *at)
    assert [(one["value"], one["deliveries"], one["response"]) for one in again] == [
        ("v1", 3, "term"),
        ("v2", 3, "term"),
    ]
    assert values(lines_of(*take, *at)) == ["v3", "v4"]


def test_reset_moves_a_consumer(at: tuple[str, str], consumer: tuple[str, str]) -> None:
    take = ("consumer", "next", *consumer, "--count", "2")
    assert values(lines_of(*take, *at)) == ["v1", "v2"]
    said = text_of("consumer", "reset", *consumer, "--to-sequence", "2", *at)
    assert said == f"reset consumer {consumer[1]}: it goes on at sequence 2, and would have gone on at 3\n"
    assert values(lines_of(*take, "--no-ack", *at)) == ["v2", "v3"]
    facts = json_of("consumer", "reset", *consumer, *at)
    assert facts == {"stream": consumer[0], "consumer": consumer[1], "old": 4, "new": 2}
    assert values(lines_of(*take, *at)) == ["v2", "v3"]
    text_of("consumer", "reset", *consumer, "--to-sequence", "5", *at)
    assert values(lines_of(*take[:-2], *at)) == ["v5"]


def test_exit_code_is_1_if_fewer_messages_came_than_asked(
    at: tuple[str, str], consumer: tuple[str, str]
) -> None:
    take = ("consumer", "next", *consumer)
    done = run(*take, "--wait", "5s", "--count", "9", "--no-ack", "--raw", *at)
    assert (done.exit_code, done.stdout) == (1, "v1\nv2\nv3\n")
    note, error = done.stderr.splitlines()
    assert note.startswith("Note: acked none of 3 messages: the server redelivers them within 30 s")
    came = "Error: 3 of 9 messages came within 5 s: 3 messages wait for acks, as many as may"
    assert error == f"{came}. See consumer edit --max-pending"
    text_of("consumer", "edit", *consumer, "--max-pending", "9", *at)
    done = run(*take, "--wait", "5s", "--count", "9", "--raw", *at)
    assert (done.exit_code, done.stdout) == (1, "v4\nv5\n")
    assert "2 of 9 messages came within 5 s: the consumer has 0 unprocessed, 3 wait for acks" in done.stderr
    text_of("consumer", "pause", *consumer, "1h", *at)
    assert "the consumer is paused, 3" in error_of(*take, "--wait", "100ms", *at)


def test_next_of_a_consumer_without_acks(at: tuple[str, str], consumer: tuple[str, str]) -> None:
    stream = consumer[0]
    text_of("consumer", "create", stream, "plain", "--ack", "none", *at)
    done = run("consumer", "next", stream, "plain", *at)
    assert (done.exit_code, done.stderr) == (0, "Note: consumer plain has no acks\n")
    refused = error_of("consumer", "next", stream, "plain", "--nak", *at, code=2)
    assert "--nak must be left out, because consumer 'plain' has no acks" in refused


def test_next_of_a_consumer_with_a_priority_group(at: tuple[str, str], consumer: tuple[str, str]) -> None:
    text_of("consumer", "create", consumer[0], "pinned", "--pinned-group", "g", *at)
    assert values(lines_of("consumer", "next", consumer[0], "pinned", *at)) == ["v1"]
    wrong = error_of("consumer", "next", consumer[0], "pinned", "--group", "h", *at, code=2)
    assert "--group must be one of" in wrong


def test_longest_wait_is_accepted(at: tuple[str, str], consumer: tuple[str, str]) -> None:
    assert text_of("consumer", "next", *consumer, "--wait", "999999999w", "--raw", *at) == "v1\n"


def test_wrong_calls_of_next(at: tuple[str, str], consumer: tuple[str, str]) -> None:
    take = ("consumer", "next", *consumer)
    assert "--ack and --nak exclude each other" in error_of(*take, "--ack", "--nak", *at, code=2)
    assert "--raw and --json exclude each other" in error_of(*take, "--raw", "--json", *at, code=2)
    assert "--wait must be a positive number of seconds, got 0" in error_of(*take, "--wait", "0", *at, code=2)
    assert "consumer not found" in error_of("consumer", "next", consumer[0], "missing", *at)
    assert "needs JetStream" in error_of("consumer", "next", "a", "b", "--url", "liftbridge://h", code=2)


def test_unconfirmed_ack_is_reported_with_its_sequence() -> None:
    users = 'authorization {users: [{user: a, password: a, permissions: {publish: {deny: ["$JS.ACK.>"]}}}]}'
    with run_nats_server(jetstream=True, config_text=users) as server:
        at = ("--url", server.url.replace("nats://", "nats://a:a@"))
        text_of("stream", "create", "S", *at)
        text_of("publish", "S", "v1", *at)
        text_of("consumer", "create", "S", "C", *at)
        done = run("consumer", "next", "S", "C", "--raw", *at, "--timeout", "4")
    assert (done.exit_code, done.stdout) == (1, "v1\n")
    note, error = done.stderr.splitlines()
    assert note == "Note: the ack of sequence 1 was not confirmed; 0 of 1 were"
    assert error.count("permissions violation for publish") == 1


@pytest.mark.usefixtures("interruptible")
def test_interrupted_next_keeps_the_acks_that_were_made(
    at: tuple[str, str], consumer: tuple[str, str]
) -> None:
    with started("consumer", "next", *consumer, "--count", "9", "--wait", "1h", "--json", *at) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [json.loads(process.stdout.readline())["value"] for _ in range(5)] == [
            f"v{number}" for number in range(1, 6)
        ]
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().split() == [b"interrupted"]
        assert process.wait(240) == 130
    assert json_of("consumer", "info", *consumer, *at)["ack_floor"]["stream_seq"] >= 4
