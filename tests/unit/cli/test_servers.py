"""Servers of a command: options, environment, and contexts of the nats command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from liftenvelope.cli._connecting.contexts import NatsContext, context_names, read_context, selected_context
from liftenvelope.cli._connecting.servers import CommandServers, find_servers
from liftenvelope.cli._root import root
from liftenvelope.errors import UsageError

Save = Callable[..., None]


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    """Write a context, and select it if asked to."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LIFTENVELOPE_URL", raising=False)
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)

    def write(name: str, content: dict[str, Any] | str, *, select: bool = False) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
        if select:
            (tmp_path / "nats" / "context.txt").write_text(f"{name}\n")

    return write


def found(url: str | None = None, context: str | None = None, env: str | None = None) -> CommandServers:
    return find_servers(url, context, 5.0, from_environment=env)


@pytest.mark.parametrize(
    ("url", "scheme", "urls"),
    [
        ("nats://a", "nats", ("nats://a:4222",)),
        ("nats://a:1,nats://u:p@b:2", "nats", ("nats://a:1", "nats://u:p@b:2")),
        ("tls://a", "nats", ("tls://a:4222",)),
        ("liftbridge://a", "liftbridge", ("a:9292",)),
        ("liftbridge://[::1]:5, liftbridge://b", "liftbridge", ("[::1]:5", "b:9292")),
        ("host:9292", "liftbridge", ("host:9292",)),
    ],
)
def test_urls(url: str, scheme: str, urls: tuple[str, ...]) -> None:
    servers = found(url)
    assert (servers.scheme, servers.urls) == (scheme, urls)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "address must be host:port, got|--url must be a URL such as"),
        ("ftp://a", "--url must be a URL such as nats://host:4222, .* got 'ftp://a'"),
        ("nats://", "--url must be a URL such as"),
        ("nats://a:99999", "--url must be a URL such as"),
        ("nats://a/path", "--url must be a URL such as"),
        ("nats://a,liftbridge://b", "--url must have servers of one kind"),
        ("liftbridge://user@a", "--url of Liftbridge must not have a user, got 'liftbridge://a'"),
    ],
)
def test_invalid_urls(url: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        found(url)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(UsageError, match="--timeout must be a positive number of seconds"):
        find_servers("nats://a", None, timeout)


def test_secrets_are_not_in_texts() -> None:
    servers = found("nats://user:secret@a:1")
    assert servers.where == "nats://a:1"
    assert "secret" not in repr(servers)
    context = NatsContext(name="x", password="secret", token="secret", nkey="secret")
    assert "secret" not in repr(context)


def test_no_server_is_named(save: Save) -> None:
    with pytest.raises(UsageError, match="--url, LIFTENVELOPE_URL or --context must name servers"):
        found()


def test_order_of_option_context_environment_and_selection(save: Save) -> None:
    save("one", {"url": "nats://one:1", "user": "u1", "password": "p1"}, select=True)
    save("two", {"url": "two:2", "token": "t2"})
    assert found().urls == ("nats://one:1",)
    assert found().context.user == "u1"
    assert found(env="nats://env:3").urls == ("nats://env:3",)
    assert found(env="nats://env:3").context.user == ""  # the login of a selected context stays at home
    assert found(context="two", env="nats://env:3").urls == ("nats://two:2",)
    assert found(context="two").context.token == "t2"
    both = found("nats://four:4", "two")
    assert (both.urls, both.context.token) == (("nats://four:4",), "t2")
    assert found("nats://four:4").context.token == ""
    assert found(env="").urls == ("nats://one:1",)


def test_names_of_contexts(save: Save, tmp_path: Path) -> None:
    save("b", {})
    save("a", {}, select=True)
    assert context_names() == ["a", "b"]
    assert selected_context() == "a"
    assert read_context("a").url == "nats://127.0.0.1:4222"


def test_paths_of_a_context_are_expanded(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("KEYS", "/keys")
    save("a", {"creds": "~/a.creds", "ca": "$KEYS/ca.pem", "cert": "c", "key": "k", "tls_first": True})
    context = read_context("a")
    assert (context.creds, context.ca) == ("/home/me/a.creds", "/keys/ca.pem")
    assert context.tls_first
    save("b", {"nkey": "file:///keys/seed"})
    assert read_context("b").nkey == "/keys/seed"


def test_context_as_the_nats_command_writes_it(save: Save) -> None:
    """A saved context has every field, those without a value as well."""
    unset = (
        "socks_proxy", "token", "creds", "nkey", "cert", "key", "ca", "nsc", "jetstream_domain",
        "jetstream_api_prefix", "jetstream_event_prefix", "inbox_prefix", "user_jwt", "user_seed",
        "windows_cert_store", "windows_cert_match_by", "windows_cert_match",
    )  # fmt: skip
    given = {"description": "Tea", "color_scheme": "red", "url": "nats://a", "user": "u", "password": "p"}
    missing = {"tls_first": False, "windows_ca_certs_match": None}
    save("a", {**dict.fromkeys(unset, ""), **missing, **given})
    assert read_context("a") == NatsContext(name="a", url="nats://a", user="u", password="p")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("no JSON with secret", "context 'a' must be JSON"),
        ("[" * 100_000, "context 'a' must be JSON"),
        ("[]", "context 'a' must be a JSON object, got list"),
        ({"url": 5}, "url of context 'a' must be a text, got int"),
        ({"nsc": "nsc://secret"}, "context 'a' has nsc, which this command does not support"),
        ({"user_jwt": "secret"}, "context 'a' has user_jwt"),
        ({"user_seed": "secret"}, "context 'a' has user_seed"),
        ({"socks_proxy": "secret"}, "context 'a' has socks_proxy"),
        ({"windows_cert_store": "secret"}, "context 'a' has windows_cert_store"),
        ({"windows_cert_match_by": "secret"}, "context 'a' has windows_cert_match_by"),
        ({"windows_cert_match": "secret"}, "context 'a' has windows_cert_match"),
        ({"windows_ca_certs_match": ["secret"]}, "context 'a' has windows_ca_certs_match"),
        ({"user": "secret", "token": "secret"}, "context 'a' must have one login, got user and token"),
        ({"creds": "op://secret"}, "creds of context 'a' is a reference with op://"),
        ({"user": "u", "password": "env://secret"}, "password of context 'a' is a reference with env://"),
        ({"tls_first": "secret"}, "tls_first of context 'a' must be true or false, got str"),
        ({"cert": "secret"}, "cert and key of context 'a' go together"),
    ],
)
def test_malformed_contexts_are_named_without_their_content(
    save: Save, content: dict[str, Any] | str, text: str
) -> None:
    save("a", content)
    with pytest.raises(UsageError, match=text) as caught:
        read_context("a")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", "../../etc/passwd", "a/b", "a\0b"])
def test_name_of_a_context_is_no_path(save: Save, name: str) -> None:
    with pytest.raises(UsageError, match="--context must be the name of a context"):
        read_context(name)


def test_unknown_context_lists_the_known_ones(save: Save) -> None:
    save("one", {})
    with pytest.raises(UsageError, match="there is no context 'two'; known contexts: one"):
        read_context("two")


def test_unreadable_context(save: Save, tmp_path: Path) -> None:
    (tmp_path / "nats" / "context" / "a.json").mkdir()
    with pytest.raises(UsageError, match="context 'a' must be a file that can be read"):
        read_context("a")


def test_contexts_are_completed_in_the_shell(save: Save) -> None:
    save("orders", {})
    save("other", {})
    save("test", {})
    done = CliRunner().invoke(
        root,
        env={
            "COMP_WORDS": "liftenvelope stream ls --context o",
            "COMP_CWORD": "4",
            "_LIFTENVELOPE_COMPLETE": "bash_complete",
        },
        prog_name="liftenvelope",
    )
    assert done.output.splitlines() == ["plain,orders", "plain,other"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "stream pause x --url nats://a",
            "stream pause needs Liftbridge: --url must begin with liftbridge://",
        ),
        ("stream resume x --url nats://a", "stream resume needs Liftbridge"),
        ("stream readonly x --url nats://a", "stream readonly needs Liftbridge"),
        ("stream watch --start 1h --url nats://a", "--start must be left out for JetStream"),
        ("stream watch --no-follow --url nats://a", "--no-follow must be left out for JetStream"),
        ("stream watch --api --url liftbridge://a", "--api needs JetStream"),
        ("stream purge x -y --url liftbridge://a", "stream purge needs JetStream"),
        ("stream get x 1 --url liftbridge://a", "stream get needs JetStream"),
        ("stream get x --url nats://a", "one of SEQUENCE and --last-for must be given"),
        ("stream get x 1 --last-for y --url nats://a", "one of SEQUENCE and --last-for must be given"),
        ("stream get x 1 --raw --json --url nats://a", "--raw and --json exclude each other"),
        ("stream rmm x 1 --url nats://a", "without a terminal, a command that deletes needs --yes"),
        ("stream subjects x --url liftbridge://a", "stream subjects needs JetStream"),
        ("stream edit x --url liftbridge://a", "stream edit needs JetStream, because Liftbridge's API"),
        ("stream ls --subject x --url liftbridge://a", "--subject needs JetStream"),
        ("stream create x --partitions 2 --url nats://a", "--partitions must be left out, because JetStream"),
        ("stream create x --storage file --url liftbridge://a", "--storage must be left out, because Lift"),
        ("stream create x --subject a --subject b --url liftbridge://a", "--subject must be given once"),
        ("stream create x --max-age 1y --url nats://a", "must be a duration such as 30s"),
        ("stream create x --max-bytes 5x --url nats://a", "must be a size such as 512"),
        ("stream create a.b --url nats://a", "stream name|must not"),
        ("stream create x --max-age 999999999w --url nats://a", "Error: --max-age must be a number of"),
        ("consumer create s c --ack-wait 999999999w --url nats://a", "Error: --ack-wait must be a number of"),
        ("stream rm x --url nats://a", "without a terminal, a command that deletes needs --yes"),
        ("stream purge x --url nats://a", "without a terminal, a command that deletes needs --yes"),
        ("stream purge x -y --keep 1 --seq 2 --url nats://a", "--keep and --seq exclude each other"),
        ("stream watch --start -5 --url liftbridge://a", "--start must be an offset, a time or a word"),
        ("publish x y --file z --url nats://a", "VALUE and --file exclude each other"),
        ("publish x y --header z --url nats://a", "--header must be NAME=VALUE, got 'z'"),
        ("publish x y --key z --url nats://a", "--key must be left out for JetStream"),
        ("publish x y --message-id z --url liftbridge://a", "--message-id must be left out for Liftbridge"),
        ("publish x y --message-id z --count 2 --url nats://a", "--count must be 1 with --message-id"),
        (
            "publish x y --ttl soon --url nats://a",
            "must be a duration such as 30s, 15m, 1h or 7d, or never, got 'soon'",
        ),
        ("publish x y --envelope --url liftbridge://a", "--envelope needs JetStream|--envelope needs"),
        (
            "publish x y --envelope --partition 1 --url nats://a",
            "--partition must be left out with --envelope",
        ),
        ("tail x --raw --json --url nats://a", "--raw and --json exclude each other"),
        ("tail x --partition 1 --url nats://a", "--partition needs Liftbridge"),
        ("tail x --subject a --url liftbridge://a", "--subject needs JetStream"),
        ("tail x --start soon --url nats://a", "an age such as 1h, a time such as"),
        ("tail x --limit 0 --url nats://a", "0 is not in the range"),
        ("tail x --limit five --url nats://a", "'five' is not a valid integer."),
    ],
)
def test_wrong_usage_is_found_before_any_connection(words: str, text: str) -> None:
    done = CliRunner().invoke(root, words.split(), input="value")
    assert done.exit_code == 2, done.output
    assert any(part in " ".join(done.stderr.split()) for part in text.split("|")), done.stderr
