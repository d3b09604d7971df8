"""Logins by contexts of the nats command, and servers that refuse or are gone."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nkeys
import pytest
from click.testing import Result

from liftenvelope.cli._connecting.servers import find_servers
from liftenvelope.nats.logins import read_credentials
from liftenvelope.testing import FaultProxy, GatewayCluster, run_gateway, run_liftbridge, run_nats_server
from tests.integration.certificates import Certificates
from tests.integration.cli.commands import error_of, run
from tests.integration.conftest import until
from tests.integration.credentials_files import write_credentials
from tests.integration.nats_tls import tls_first_server
from tests.unit.hostile_nats import FakeNats

PASSWORD = "correct-horse-battery"
Within = Callable[..., Result]


@pytest.fixture
def within(tmp_path: Path) -> Within:
    """Run a command with a context of these settings."""

    def run_within(context: dict[str, Any], *arguments: str) -> Result:
        folder = tmp_path / "nats" / "context"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "here.json").write_text(json.dumps(context))
        done = run(*arguments, "--context", "here", XDG_CONFIG_HOME=str(tmp_path))
        assert PASSWORD not in done.output
        assert "Traceback" not in done.output
        return done

    return run_within


def seed_and_key() -> tuple[str, str]:
    pair = nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
    return pair.seed.decode(), pair.public_key.decode()


@pytest.mark.parametrize("kind", ["nats", "liftbridge"])
async def test_interrupted_connecting_leaves_no_connection(gateway_server: GatewayCluster, kind: str) -> None:
    target = gateway_server.nats_url if kind == "nats" else gateway_server.addresses[0]
    with FaultProxy(target) as proxy:
        proxy.stall()
        servers = find_servers(f"{kind}://{proxy.address}", None, 240)
        opened = servers.nats() if kind == "nats" else servers.liftbridge()
        connecting = asyncio.ensure_future(opened.__aenter__())
        await until(lambda: proxy.open_connections)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        proxy.resume()
        await until(lambda: not proxy.open_connections)


def test_user_and_password(within: Within) -> None:
    users = {"authorization": {"users": [{"user": "app", "password": PASSWORD}]}}
    with run_nats_server(jetstream=True, config=users) as server:
        login = {"url": server.url, "user": "app", "password": PASSWORD}
        assert within(login, "stream", "ls").exit_code == 0
        for wrong in ({**login, "password": "wrong"}, {"url": server.url}):
            done = within(wrong, "stream", "ls")
            assert done.exit_code == 1
            # A connection may be reset before nats-py has read the reason.
            assert re.search("refused the login: check the user and|refuses a login", done.stderr)
        url = f"nats://app:{PASSWORD}@{server.address}"
        assert run("stream", "ls", "--url", url).exit_code == 0
        assert PASSWORD not in run("stream", "ls", "--url", f"{url}x").output


def test_read_and_write_use_the_login_of_a_context(within: Within, tmp_path: Path) -> None:
    users = {"authorization": {"users": [{"user": "app", "password": PASSWORD}]}}
    (tmp_path / "rows").write_text('{"value": "one", "subject": "orders"}\n')
    with run_nats_server(jetstream=True, config=users) as server:
        login = {"url": server.url, "user": "app", "password": PASSWORD}
        assert within(login, "stream", "create", "orders").exit_code == 0
        done = within(login, "write", "orders", "--from", str(tmp_path / "rows"))
        assert done.exit_code == 0, done.output
        done = within(login, "read", "orders")
        assert json.loads(done.stdout)["value"] == "one"
        assert within({**login, "password": "wrong"}, "read", "orders").exit_code == 1


def test_token(within: Within) -> None:
    with run_nats_server(jetstream=True, config={"authorization": {"token": PASSWORD}}) as server:
        assert within({"url": server.url, "token": PASSWORD}, "stream", "ls").exit_code == 0
        assert within({"url": server.url, "token": "wrong"}, "stream", "ls").exit_code == 1


def test_nkey(within: Within, tmp_path: Path) -> None:
    seed, key = seed_and_key()
    (tmp_path / "seed").write_text(seed)
    with run_nats_server(jetstream=True, config={"authorization": {"users": [{"nkey": key}]}}) as server:
        login = {"url": server.url, "nkey": str(tmp_path / "seed")}
        assert within(login, "stream", "ls").exit_code == 0
        (tmp_path / "seed").write_text("SUAAA")
        done = within(login, "stream", "ls")
        assert (done.exit_code, "creds or nkey must have a valid seed" in done.stderr) == (2, True)
        done = within({**login, "nkey": str(tmp_path / "missing")}, "stream", "ls")
        assert (done.exit_code, "a file of the login must be readable" in done.stderr) == (2, True)
        done = within({**login, "nkey": seed}, "stream", "ls")
        assert seed not in done.output


def test_credentials_file(within: Within, tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    with run_nats_server(config=write_credentials(tmp_path)) as server:
        for login in ({"creds": str(file)}, {"creds": f"file://{file}"}):
            done = within({"url": server.url, **login}, "stream", "ls")
            assert "JetStream is not enabled" in done.stderr  # the login was accepted
        assert re.search(
            "refused the login|refuses a login", within({"url": server.url}, "stream", "ls").stderr
        )
        whole = file.read_text()
        jwt, seed = read_credentials(whole, "x")
        for broken in (seed, jwt, whole.replace("BEGIN NATS", "BEGIN"), whole.replace("BEGIN USER", "BEGIN")):
            file.write_text(broken)
            for words in (("stream", "ls"), ("read", "x")):
                done = within({"url": server.url, "creds": str(file)}, *words)
                assert done.exit_code == 2
                assert "must have blocks 'NATS USER JWT' and 'USER NKEY SEED'" in done.stderr
                assert jwt not in done.output
                assert seed not in done.output


def test_user_without_a_password(within: Within) -> None:
    users = {"authorization": {"users": [{"user": "app", "password": ""}, {"user": "b", "password": "b"}]}}
    with run_nats_server(jetstream=True, config=users) as server:
        done = within({"url": server.url, "user": "app"}, "stream", "ls")
        assert done.exit_code == 0, done.output


def test_tls_first(within: Within, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('{"value": "one", "subject": "orders"}\n')
    with tls_first_server(tmp_path) as url:
        login = {"url": url, "ca": str(tmp_path / "ca.pem"), "tls_first": True}
        assert within(login, "stream", "create", "orders").exit_code == 0
        done = within(login, "write", "orders", "--from", str(tmp_path / "rows"))
        assert done.exit_code == 0, done.output
        done = within(login, "read", "orders")
        assert json.loads(done.stdout)["value"] == "one"
        untrusted = within({"url": url, "tls_first": True}, "stream", "ls")
        assert untrusted.exit_code == 1
        assert "certificate" in untrusted.stderr.lower()
        for words in (("stream", "ls", "--timeout", "1"), ("read", "orders")):
            assert within({**login, "tls_first": False}, *words).exit_code == 1


def test_tls_of_nats(within: Within, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    names = {"cert_file": "cert.pem", "key_file": "key.pem", "ca_file": "ca.pem"}
    tls = {name: str(tmp_path / file) for name, file in names.items()}
    client = certificates.ca.issue_cert("client@example.org")
    client.private_key_pem.write_to_path(tmp_path / "client-key.pem")
    client.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    with run_nats_server(jetstream=True, config={"tls": {**tls, "verify": True}}) as server:
        files = {"ca": "ca.pem", "cert": "client.pem", "key": "client-key.pem"}
        login = {"url": server.url, **{name: str(tmp_path / file) for name, file in files.items()}}
        assert within(login, "stream", "ls").exit_code == 0
        assert within(login, "stream", "create", "s").exit_code == 0
        assert within(login, "publish", "s", "x").exit_code == 0
        assert within(login, "tail", "s", "--limit", "1").exit_code == 0
        assert within({"url": server.url, "ca": login["ca"]}, "stream", "ls").exit_code == 1
        done = within({**login, "ca": str(tmp_path / "missing.pem")}, "stream", "ls")
        assert (done.exit_code, "must be PEM files that can be read" in done.stderr) == (2, True)


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_login_is_not_sent_without_the_tls_that_is_wanted(
    within: Within, tmp_path: Path, scheme: str
) -> None:
    """FAKE, NOT REAL: a server in between that claims that there is no TLS."""
    Certificates(tmp_path)
    with FakeNats().running() as fake:
        url = f"{scheme}://127.0.0.1:{fake.port}"
        login = {"url": url, "user": "app", "password": PASSWORD}
        if scheme == "nats":
            login["ca"] = str(tmp_path / "ca.pem")
        done = within(login, "stream", "ls")
        assert done.exit_code == 1
        assert "the server does not use TLS" in done.stderr
        assert fake.received
        assert not any(PASSWORD.encode() in sent for sent in fake.received)


def test_tls_of_liftbridge(within: Within, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    trusting = certificates.client("app")
    with run_gateway(config=certificates.gateway_config, tls=trusting) as cluster:
        leaf = certificates.ca.issue_cert("app", common_name="app")
        leaf.private_key_pem.write_to_path(tmp_path / "client-key.pem")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
        files = {"ca": "ca.pem", "cert": "client.pem", "key": "client-key.pem"}
        login = {name: str(tmp_path / file) for name, file in files.items()}
        url = f"liftbridge://{cluster.addresses[0]}"
        assert within({"url": url, **login}, "stream", "ls").exit_code == 0
        assert within(login, "stream", "ls", "--url", url).exit_code == 0


def test_domain_and_inbox_prefix(within: Within, tmp_path: Path) -> None:
    user = {
        "user": "app",
        "password": PASSWORD,
        # The server checks both the subject of the domain and the one that it stands for.
        "permissions": {"publish": ["$JS.hub.API.>", "$JS.API.STREAM.LIST"], "subscribe": "_INBOX.app.>"},
    }
    jetstream = {"domain": "hub", "store_dir": str(tmp_path / "store")}
    config = {"authorization": {"users": [user]}, "jetstream": jetstream}
    with run_nats_server(jetstream=True, config=config) as server:
        login = {"url": server.url, "user": "app", "password": PASSWORD}
        place = {"jetstream_domain": "hub", "inbox_prefix": "_INBOX.app"}
        done = within({**login, **place}, "stream", "ls")
        assert done.exit_code == 0, done.output
        denied = within({**login, **place}, "stream", "info", "x", "--timeout", "4")
        assert denied.exit_code == 1
        assert "permissions violation for publish" in denied.stderr.lower()


def test_permission_that_is_missing_on_nats(within: Within) -> None:
    user = {"user": "app", "password": PASSWORD, "permissions": {"publish": "$JS.API.STREAM.INFO.>"}}
    config = {"authorization": {"users": [user]}}
    with run_nats_server(jetstream=True, config=config) as server:
        url = f"nats://app:{PASSWORD}@{server.address}"
        for words, said in (
            (("stream", "create", "x"), "permissions violation"),
            (("publish", "x", "y"), "does not let this user publish on 'x'"),
            (("publish", "x", "y", "--envelope"), "does not let this user publish on 'x'"),
        ):
            error = error_of(*words, "--url", url, "--timeout", "4")
            assert said in error.lower(), words
            assert PASSWORD not in error


def test_permission_that_is_missing_on_liftbridge(within: Within, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    policy = "p, app, *, FetchMetadata"
    config = certificates.liftbridge_config
    with run_liftbridge(config=config, tls=certificates.client("app"), policy=policy) as cluster:
        leaf = certificates.ca.issue_cert("app", common_name="app")
        leaf.private_key_pem.write_to_path(tmp_path / "client-key.pem")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
        files = {"ca": "ca.pem", "cert": "client.pem", "key": "client-key.pem"}
        login = {name: str(tmp_path / file) for name, file in files.items()}
        url = f"liftbridge://{cluster.addresses[0]}"
        assert within({"url": url, **login}, "stream", "ls").exit_code == 0
        done = within({"url": url, **login}, "stream", "create", "x")
        assert done.exit_code == 1
        assert "permission" in done.stderr.lower() or "not authorized" in done.stderr.lower()


@pytest.mark.parametrize("words", [("stream", "ls"), ("publish", "x", "y"), ("tail", "x")])
@pytest.mark.parametrize("scheme", ["nats", "liftbridge"])
def test_no_server_listens(scheme: str, words: tuple[str, ...]) -> None:
    error = error_of(*words, "--url", f"{scheme}://127.0.0.1:1", "--timeout", "1")
    assert error.startswith(f"Error: can't connect to {'NATS' if scheme == 'nats' else 'Liftbridge'} at")
    assert error.endswith("; check the address and its scheme, and that the server runs")


@pytest.mark.parametrize("scheme", ["nats", "liftbridge"])
def test_advice_on_the_address_of_a_server_that_does_not_answer(scheme: str) -> None:
    with run_nats_server() as server, FaultProxy(server.url) as proxy:
        proxy.stall()
        error = error_of("stream", "ls", "--url", f"{scheme}://{proxy.address}", "--timeout", "2")
        assert error.endswith("; check the address and its scheme, and that the server runs")


@pytest.mark.parametrize("scheme", ["nats", "liftbridge"])
def test_no_advice_on_the_address_of_a_server_that_is_not_trusted(
    within: Within, tmp_path: Path, scheme: str
) -> None:
    certificates = Certificates(tmp_path)
    (tmp_path / "other").mkdir()
    Certificates(tmp_path / "other")
    tls = {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")}
    with ExitStack() as running:
        if scheme == "nats":
            url = running.enter_context(run_nats_server(config={"tls": tls})).url
        else:
            config, client = certificates.gateway_config, certificates.client("app")
            cluster = running.enter_context(run_gateway(config=config, tls=client))
            url = f"liftbridge://{cluster.addresses[0]}"
        other = str(tmp_path / "other" / "ca.pem")
        done = within({"url": url, "ca": other}, "stream", "ls", "--timeout", "10")
    assert "certificate verify failed" in done.stderr
    assert "check the address" not in done.stderr


def test_server_of_the_other_kind() -> None:
    with run_nats_server() as server:
        error = error_of("stream", "ls", "--url", f"liftbridge://{server.address}", "--timeout", "4")
        assert error.startswith("Error: can't connect to Liftbridge at")
        error = error_of("stream", "ls", "--url", server.url)
        assert "JetStream is not enabled" in error
