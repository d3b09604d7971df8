"""``liftenvelope consumer edit``, and the settings of ``consumer create``, on nats-server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.cli.commands import error_of, json_of, text_of


@pytest.fixture
def at(nats_url: str) -> tuple[str, str]:
    return "--url", nats_url


@pytest.fixture
def consumer(at: tuple[str, str], stream: str) -> tuple[str, str]:
    """Stream and name of a consumer."""
    text_of("consumer", "create", stream, "worker", "--max-deliver", "4", "--description", "tea", *at)
    return stream, "worker"


def config_of(consumer: tuple[str, str], at: tuple[str, str]) -> dict[str, object]:
    config: dict[str, object] = json_of("consumer", "info", *consumer, *at)["config"]
    return config


def test_edit_changes_what_is_given_and_keeps_the_rest(
    at: tuple[str, str], consumer: tuple[str, str]
) -> None:
    stream, name = consumer
    edit = (
        "consumer",
        "edit",
        stream,
        name,
        "--max-pending",
        "7",
        "--ack-wait",
        "10s",
        "--max-deliver",
        "-1",
    )
    changes = {
        "ack_wait": {"old": 30.0, "new": 10.0},
        "max_deliver": {"old": 4, "new": -1},
        "max_ack_pending": {"old": 1000, "new": 7},
    }
    expected = {"stream": stream, "consumer": name, "dry_run": True, "changes": changes}
    assert json_of(*edit, "--dry-run", *at) == expected
    assert config_of(consumer, at)["max_ack_pending"] == 1000
    table = [line.split() for line in text_of(*edit, *at).splitlines()]
    assert table[:2] == [["setting", "old", "new"], ["ack_wait", "30", "s", "10", "s"]]
    config = config_of(consumer, at)
    assert (config["ack_wait"], config["max_ack_pending"], config["description"]) == (10**10, 7, "tea")
    assert text_of(*edit, *at) == f"consumer {name} has these settings already\n"


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (["--description", "coffee"], "description", "coffee"),
        (["--backoff", "1s, 5s"], "backoff", [10**9, 5 * 10**9]),
        (["--filter", "{}.a", "--filter", "{}.b"], "filter_subjects", ["{}.a", "{}.b"]),
        (["--inactive-threshold", "1h"], "inactive_threshold", 3600 * 10**9),
        (["--replicas", "1"], "num_replicas", 1),
        (["--sample", "30%"], "sample_freq", "30%"),
        (["--headers-only"], "headers_only", True),
        (["--max-batch", "5"], "max_batch", 5),
        (["--max-expires", "5s"], "max_expires", 5 * 10**9),
        (["--max-bytes", "1M"], "max_bytes", 2**20),
        (["--pinned-group", "g"], "priority_policy", "pinned_client"),
        (["--overflow-group", "g"], "priority_groups", ["g"]),
        (["--prioritized-group", "g"], "priority_policy", "prioritized"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_settings_can_be_changed_and_given_to_a_new_consumer(
    at: tuple[str, str], consumer: tuple[str, str], options: list[str], field: str, value: object
) -> None:
    stream = consumer[0]
    given = [one.format(stream) for one in options]
    wanted = json.loads(json.dumps(value).replace("{}", stream))
    text_of("consumer", "edit", *consumer, *given, *at)
    assert config_of(consumer, at)[field] == wanted
    text_of("consumer", "create", stream, "second", *given, "--max-deliver", "4", *at)
    assert config_of((stream, "second"), at)[field] == wanted


def test_metadata_filter_backoff_and_group_can_be_removed(
    at: tuple[str, str], consumer: tuple[str, str]
) -> None:
    edit = ("consumer", "edit", *consumer)
    text_of(*edit, "--metadata", "team=a", "--metadata", "x=1=2", "--filter", f"{consumer[0]}.a", *at)
    text_of(*edit, "--backoff", "1s", "--pinned-group", "g", *at)
    shown = text_of("consumer", "info", *consumer, *at)
    assert "team=a, x=1=2" in shown
    assert "_nats" not in shown
    removed = ("--remove-metadata", "x", "--no-filter", "--backoff", "none", "--no-group")
    changes = json_of(*edit, *removed, *at)["changes"]
    assert changes["metadata"] == {"old": {"team": "a", "x": "1=2"}, "new": {"team": "a"}}
    config = config_of(consumer, at)
    assert not {"filter_subject", "filter_subjects", "backoff", "priority_groups"} & config.keys()


def test_configuration_moves_from_consumer_to_consumer_as_json(
    at: tuple[str, str], consumer: tuple[str, str], tmp_path: Path
) -> None:
    file, stream = tmp_path / "config.json", consumer[0]
    text_of("consumer", "edit", *consumer, "--ack-wait", "7s", "--metadata", "team=a", *at)
    file.write_text(text_of("consumer", "info", *consumer, "--json", *at))
    create = ("consumer", "create", stream, "copy", "--config", str(file))
    config = json_of(*create, "--max-deliver", "9", "--metadata", "b=c", *at)["config"]
    assert (config["name"], config["durable_name"], config["ack_wait"]) == ("copy", "copy", 7 * 10**9)
    assert (config["max_deliver"], config["metadata"]["team"], config["metadata"]["b"]) == (9, "a", "c")
    text_of("consumer", "edit", stream, "copy", "--config", str(file), *at)
    assert config_of((stream, "copy"), at)["max_deliver"] == 4
    file.write_text('{"metadata": 5}')
    edit = ("consumer", "edit", *consumer, "--config", str(file))
    assert "metadata of --config must be an object" in error_of(*edit, "--metadata", "a=b", *at, code=2)
    assert "ConsumerConfig.metadata must be a valid value" in error_of(*edit, *at, code=2)


def test_refused_changes_say_what_to_do(
    at: tuple[str, str], consumer: tuple[str, str], tmp_path: Path
) -> None:
    edit = ("consumer", "edit", *consumer)
    file = tmp_path / "config.json"
    file.write_text('{"config": {"deliver_policy": "new"}}')
    said = error_of(*edit, "--config", str(file), *at)
    assert said == (
        "Error: deliver policy can not be updated: create another consumer for it (code 500, error 10012)"
    )
    assert "replicas > 1 not supported" in error_of(*edit, "--replicas", "3", *at)
    assert "consumer not found" in error_of("consumer", "edit", consumer[0], "none", "--max-batch", "1", *at)
    for options, expected in (
        (("--no-filter", "--filter", "a"), "--no-filter must be left out"),
        (("--no-group", "--pinned-group", "a"), "--no-group must be left out"),
        (("--pinned-group", "a", "--overflow-group", "b"), "exclude each other"),
        (("--remove-metadata", "x"), "must be a name of the consumer's metadata, got 'x'"),
        (("--metadata", "x"), "must be NAME=VALUE, got 'x'"),
        (("--backoff", "1s,soon"), "must be a duration such as 30s, 15m, 1h or 7d, got 'soon'"),
        (("--ack-wait", "1s", "--backoff", "2s"), "--ack-wait must be left out, because backoff replaces it"),
        (("--ack-wait", "99999999w"), "--ack-wait must be a number of seconds that 64 bits"),
    ):
        assert expected in error_of(*edit, *options, *at, code=2)
    assert "needs JetStream" in error_of("consumer", "edit", "a", "b", "--url", "liftbridge://h", code=2)
