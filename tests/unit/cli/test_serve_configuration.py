"""Configuration of ``liftenvelope serve``: options, environment variables, the file, and ``--check``."""

from __future__ import annotations

import configparser
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import click
import nkeys
import pytest
from click.testing import CliRunner, Result
from nats.aio.client import Client

from liftenvelope.cli._root import root
from liftenvelope.cli._serving.config_file import read_config
from liftenvelope.cli._serving.settings import PREFIX, SETTINGS
from liftenvelope.errors import UsageError
from liftenvelope.gateway import Gateway, Limits
from liftenvelope.gateway.serving import Serving
from tests.integration.certificates import Certificates

ROOT = Path(__file__).parents[3]
NATS = ("--nats", "nats://127.0.0.1:1")
#: Arguments that the command makes from several settings, or that it always sets itself.
MADE = {
    "gateway.nc",
    "gateway.read_nc",
    "gateway.tls",
    "gateway.limits",
    "gateway.max_message_bytes",
    "connect",
    "gateway",
}


pytestmark = pytest.mark.usefixtures("kept_logging")


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's default data folder is the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def check(*arguments: str, **variables: str) -> Result:
    given = {PREFIX + name: value for name, value in variables.items()}
    return CliRunner().invoke(root, ["serve", "--check", *arguments], env=given)


def checked(*arguments: str, **variables: str) -> dict[str, dict[str, Any]]:
    """Return the settings that ``--check --json`` prints."""
    done = check("--json", *arguments, **variables)
    assert done.exit_code == 0, done.output
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)["settings"]
    return found


def written(folder: Path, text: str) -> str:
    path = folder / "liftenvelope.toml"
    path.write_text(text, "utf-8")
    return str(path)


def refused(folder: Path, text: str) -> str:
    """Return the error of a file, after its path."""
    path = written(folder, text)
    done = check("--config", path)
    assert (done.exit_code, done.stdout) == (2, "")
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"Error: {path}")
    return line.removeprefix(f"Error: {path}").removeprefix(": ")


class TestTable:
    def test_every_argument_of_gateway_and_serving_has_a_setting(self) -> None:
        arguments = {f"gateway.{name}" for name in inspect.signature(Gateway).parameters}
        arguments |= {one.name for one in fields(Serving)}
        targets = {target for setting in SETTINGS for target in setting.targets.split()}
        assert arguments - MADE == {one for one in targets if not one.startswith("connect.")}

    def test_targets_of_the_connection_are_arguments_of_nats(self) -> None:
        targets = {target for setting in SETTINGS for target in setting.targets.split()}
        connect = {one.partition(".")[2] for one in targets if one.startswith("connect.")}
        assert connect
        assert connect <= set(inspect.signature(Client.connect).parameters)

    def test_defaults_are_those_of_the_constructors(self) -> None:
        defaults = {
            f"gateway.{name}": one.default for name, one in inspect.signature(Gateway).parameters.items()
        }
        defaults |= {one.name: one.default for one in fields(Serving) if one.default is not MISSING}
        # The command has fixed ports, so that clients find them.
        converted = {"gateway.host", "gateway.port", "nats_host", "nats_port", "nats_debug"}
        for setting in SETTINGS:
            for target in set(setting.targets.split()) - converted:
                if not target.startswith("connect."):
                    assert setting.default == defaults[target], target

    def test_names_are_unique(self) -> None:
        for names in (
            [setting.option for setting in SETTINGS],
            [setting.key for setting in SETTINGS],
            [setting.variable for setting in SETTINGS],
        ):
            assert len(set(names)) == len(names)

    def test_help_names_every_variable(self) -> None:
        done = CliRunner().invoke(root, ["serve", "--help"], terminal_width=1000, color=False)
        assert done.exit_code == 0
        for setting in SETTINGS:
            assert setting.option in done.output
            assert f"env var: {setting.variable}" in done.output

    def test_page_lists_every_setting(self) -> None:
        page = (ROOT / "docs" / "operating.md").read_text("utf-8")
        for setting in SETTINGS:
            table, _, entry = setting.key.partition(".")
            assert f"| `[{table}] {entry}` | `{setting.option}` | `{setting.variable}` |" in page


class TestDocuments:
    def test_file_on_the_page_is_valid(self, tmp_path: Path) -> None:
        page = (ROOT / "docs" / "operating.md").read_text("utf-8")
        [text] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
        assert read_config(written(tmp_path, text)).settings["listen"] == "0.0.0.0:9292"

    def test_unit_of_systemd_runs_the_command_and_lets_it_drain(self) -> None:
        unit = configparser.ConfigParser(interpolation=None, strict=True)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        assert unit.read(ROOT / "docs" / "liftenvelope.service")
        service = unit["Service"]
        program, *arguments = service["ExecStart"].split()
        assert Path(program).name == "liftenvelope"
        assert arguments[:2] == ["serve", "--config"]
        # SIGTERM to all processes would stop the nats-server before the gateway has drained.
        expected = {"Type": "notify", "KillMode": "mixed", "ExecReload": "/bin/kill -HUP $MAINPID"}
        assert expected.items() <= dict(service).items()
        drain = next(setting.default for setting in SETTINGS if setting.name == "drain")
        # The nats-server has 15 s more.
        assert int(service["TimeoutStopSec"]) > drain + 15

    @pytest.mark.parametrize("name", ["liftenvelope", "liftenvelope-archive"])
    def test_stop_before_the_program_is_ready_does_not_fail_the_unit(self, name: str) -> None:
        unit = configparser.ConfigParser(interpolation=None, strict=True)
        assert unit.read(ROOT / "docs" / f"{name}.service")
        assert unit["Service"]["SuccessExitStatus"] == "143"


class TestOrigins:
    def test_option_replaces_variable_which_replaces_file_which_replaces_default(
        self, tmp_path: Path
    ) -> None:
        path = written(tmp_path, "[gateway]\nack_timeout = 1\nbroker_ttl = 2\nconsumer_timeout = 4\n")
        found = checked("--config", path, "--ack-timeout", "9", ACK_TIMEOUT="8", BROKER_TTL="7")["gateway"]
        assert found["ack_timeout"] == {"value": 9.0, "origin": "option"}
        assert found["broker_ttl"] == {"value": 7.0, "origin": "environment"}
        assert found["consumer_timeout"] == {"value": 4.0, "origin": "file"}
        assert found["coordinator_timeout"] == {"value": 15.0, "origin": "default"}

    def test_limits_are_replaced_one_by_one(self, tmp_path: Path) -> None:
        path = written(tmp_path, "[limits]\nmax_calls = 1\nmax_connections = 2\nidle_timeout = 3\n")
        found = checked(
            "--config", path, "--limit", "max_calls=9",
            LIMIT_MAX_CALLS="8", LIMIT_MAX_CONNECTIONS="7", LIMIT_ALLOWED_ACK_INBOXES="_INBOX.,acks.",
        )["limits"]  # fmt: skip
        assert found["max_calls"] == {"value": 9, "origin": "option"}
        assert found["max_connections"] == {"value": 7, "origin": "environment"}
        assert found["idle_timeout"] == {"value": 3.0, "origin": "file"}
        assert found["allowed_ack_inboxes"] == {"value": ["_INBOX.", "acks."], "origin": "environment"}
        assert found["max_name_chars"] == {"value": 3500, "origin": "default"}
        assert sorted(found) == sorted(one.name for one in fields(Limits))

    def test_switch_of_the_file_can_be_turned_off(self, tmp_path: Path) -> None:
        path = written(tmp_path, "[nats]\nlogin = true\n[gateway]\nencrypted = true\n")
        found = checked("--config", path, "--no-encrypted")
        assert found["nats"]["login"] == {"value": True, "origin": "file"}
        assert found["gateway"]["encrypted"] == {"value": False, "origin": "option"}

    def test_empty_variable_counts_as_not_set(self) -> None:
        assert checked(REPLICAS="", LIMIT_MAX_CALLS="")["gateway"]["replicas"]["origin"] == "default"

    def test_path_of_the_file_may_be_a_variable(self, tmp_path: Path) -> None:
        path = written(tmp_path, '[gateway]\nid = "a"\n')
        assert checked(CONFIG=path)["gateway"]["id"] == {"value": "a", "origin": "file"}

    def test_max_message_is_a_limit(self) -> None:
        limit = checked("--max-message", "7")["limits"]["max_message_bytes"]
        assert limit == {"value": 7, "origin": "option"}

    def test_every_setting_is_printed(self) -> None:
        found = checked()
        assert sorted(found) == ["gateway", "limits", "log", "monitor", "nats"]
        printed = {f"{table}.{entry}" for table, entries in found.items() for entry in entries}
        assert {setting.key for setting in SETTINGS} <= printed

    def test_output_is_a_file_of_the_same_configuration(self, tmp_path: Path) -> None:
        given = ("--replicas", "3", "--limit", "allowed_ack_inboxes=_INBOX.,acks.", "--nats-login")
        first = check(*given, "--id", 'a"\\\u20ac')
        assert first.exit_code == 0
        assert tomllib.loads(first.stdout)["gateway"]["replicas"] == 3
        again = checked("--config", written(tmp_path, first.stdout))
        expected = checked(*given, "--id", 'a"\\\u20ac')
        for table, entries in expected.items():
            for entry, line in entries.items():
                assert again[table][entry]["value"] == line["value"], entry


class TestFile:
    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("[gateway]\nreplica = 1", "[gateway] replica is unknown: did you mean replicas?"),
            ("[gateway]\nbroker-ttl = 1", "[gateway] broker-ttl is unknown: did you mean broker_ttl?"),
            ("[gateway]\ncreds = 'x'", "[gateway] creds is unknown: did you mean [nats] creds?"),
            ("[log]\nxyzzy = 1", "[log] xyzzy is unknown: use one of format, level"),
            ("[limits]\nmax_call = 1", "[limits] max_call is unknown: did you mean max_calls?"),
            ("[gatway]\nreplicas = 1", "[gatway] is unknown: did you mean [gateway]?"),
            ("[xyzzy]", "[xyzzy] is unknown: use one of [gateway], [limits], [log], [monitor], [nats]"),
            ("replicas = 1", "replicas is unknown: did you mean [gateway] replicas?"),
            ("gateway = 1", "[gateway] must be a table, got an integer, 1"),
            ("[[gateway]]", "[gateway] must be a table, got an array"),
            ("[gateway]\nreplicas = 'x'", "[gateway] replicas must be an integer, got a string, 'x'"),
            ("[gateway]\nreplicas = true", "[gateway] replicas must be an integer, got a boolean, true"),
            ("[gateway]\nreplicas = 1.0", "[gateway] replicas must be an integer, got a number, 1.0"),
            ("[gateway]\nreplicas = 6", "[gateway] replicas: 6 is not in the range 1<=x<=5."),
            ("[gateway]\ndrain = 'x'", "[gateway] drain must be a number, got a string, 'x'"),
            ("[gateway]\ndrain = nan", "[gateway] drain must be at least 0 seconds, got nan"),
            (
                "[gateway]\nbroker_ttl = inf",
                "[gateway] broker_ttl must be a positive number of seconds, got inf",
            ),
            ("[gateway]\nencrypted = 1", "[gateway] encrypted must be a boolean, got an integer, 1"),
            ("[gateway]\nid = 1979-05-27", "[gateway] id must be a string, got a date or a time"),
            ("[gateway]\nid = {a = 1}", "[gateway] id must be a string, got a table"),
            ("[gateway]\ntls_cert = \"a\\u0000\"", "[gateway] tls_cert must have no control characters"),
            ("[log]\nlevel = 'loud'", "[log] level: 'loud' is not one of"),
            ("[gateway]\nlisten = 'here'", "[gateway] listen: address must be host:port, got 'here'"),
            ("[gateway]\ntls_cert = 'a'", "[gateway] tls_cert and --tls-key belong together"),
            ("[nats]\ncreds = 'a'", "[nats] creds needs --nats"),
            ("[nats]\ntls_ca = 'a'", "[nats] tls_ca needs --nats"),
            ("[limits]\nmax_calls = 0", "[limits] max_calls must be at least 1, got 0"),
            ("[limits]\nmax_calls = 1.5", "[limits] max_calls must be an integer, got a number, 1.5"),
            ("[limits]\nidle_timeout = '1'", "[limits] idle_timeout must be a number, got a string, '1'"),
            ("[limits]\nidle_timeout = " + "9" * 400, "[limits] idle_timeout must be a number of seconds"),
            (
                "[limits]\nallowed_ack_inboxes = '_INBOX.'",
                "[limits] allowed_ack_inboxes must be an array of strings, got a string, '_INBOX.'",
            ),
            (
                "[limits]\nallowed_ack_inboxes = [1]",
                "[limits] allowed_ack_inboxes must be an array of strings, got an array",
            ),
            ("[limits]\nmax_calls = " + "9" * 5000, "must be TOML"),
            ("[gateway", "must be TOML: "),
            ("[gateway]\nid = 'a'\nid = 'b'", "must be TOML: "),
            ("a = " + "[" * 100_000, "must be TOML: its arrays or tables are nested too deeply"),
            ("#" * (1 << 20) + "\n", "must have at most 1048576 bytes, got more"),
        ],
    )  # fmt: skip
    def test_error_names_file_and_key(self, tmp_path: Path, text: str, error: str) -> None:
        assert error in refused(tmp_path, text)

    def test_file_that_is_not_utf_8(self, tmp_path: Path) -> None:
        path = tmp_path / "a.toml"
        path.write_bytes(b"\xff")
        with pytest.raises(UsageError, match="must be TOML in UTF-8"):
            read_config(str(path))

    @pytest.mark.parametrize("path", ["none", ".", "a\0"])
    def test_file_that_can_not_be_read(self, tmp_path: Path, path: str) -> None:
        with pytest.raises(UsageError, match="--config must be a file that can be read, got"):
            read_config(str(tmp_path / path))

    def test_empty_file_changes_nothing(self, tmp_path: Path) -> None:
        assert checked("--config", written(tmp_path, "")) == checked()

    def test_password_is_never_shown(self, tmp_path: Path) -> None:
        for text in (
            '[nats]\nurl = "nats://me:s3cret@127.0.0.1:1"',
            '[nats]\nurl = "me:s3cret@127.0.0.1:1"',
            '[nats]\nurl = ["nats://me:s3cret@127.0.0.1:1"]',
            '[nats]\nurll = "nats://me:s3cret@127.0.0.1:1"',
            '[gateway]\nreplicas = "nats://me:s3cret@127.0.0.1:1"',
            '[nats]\nurl = "nats://127.0.0.1:1"\ncreds = "nats://me:s3cret@127.0.0.1:1"',
            '[nats]\nurl = "nats://me:s3cret@127.0.0.1:1"\nnats = ',
        ):
            for form in ((), ("--json",)):
                done = check("--config", written(tmp_path, text), *form)
                assert done.output
                assert "s3cret" not in done.output + done.stderr
        done = check("--config", "nats://me:s3cret@127.0.0.1:1")
        assert done.exit_code == 2
        assert "s3cret" not in done.output + done.stderr


class TestCheck:
    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ((*NATS, "--nats-nkey-seed", "none"), "--nats-nkey-seed must be a file that can be read"),
            ((*NATS, "--nats-tls-ca", "none"), "--nats-tls-ca must be a file that can be read"),
            ((*NATS, "--nats-tls-cert", "none"), "--nats-tls-cert and --nats-tls-key belong together"),
            ((*NATS, "--nats-tls-server-name", "a b"), "--nats-tls-server-name must be a DNS name"),
            ((*NATS, "--nats-creds", "a", "--nats-nkey-seed", "b"), "exclude each other"),
            (("--nats-tls-ca", "none"), "--nats-tls-ca needs --nats"),
            (
                ("--nats", "nats://a, http://b"),
                "--nats must be host:port or begin with nats://, tls://, ws:// or wss://, got 'http://b'",
            ),
            (("--nats", "NATS://a"), "got 'NATS://a'"),
            (("--nats", "nats://a:65536"), "--nats must have a port from 0 to 65535"),
            (("--broker-ttl", "0"), "'--broker-ttl': 0"),
            (("--broker-ttl", "nan"), "--broker-ttl must be a positive number of seconds"),
            (("--listen", "127.0.0.1:65536"), "--listen: "),
            (("--data-dir", "/dev/null/data"), "--data-dir must be a folder that can be written"),
        ],
    )
    def test_wrong_value_exits_with_2(self, arguments: tuple[str, ...], error: str) -> None:
        done = check(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert error in done.stderr

    @pytest.mark.parametrize("url", ["http://me:s3cret@a", "nats://me:s3cret/@a", "me:s3cret/@a"])
    def test_error_of_the_url_in_a_file_names_the_option_and_no_password(
        self, tmp_path: Path, url: str
    ) -> None:
        path = tmp_path / "nats.url"
        path.write_text(url)
        done = check("--nats-url-file", str(path))
        assert done.exit_code == 2
        assert "Error: --nats-url-file must " in done.stderr
        assert "s3cret" not in done.stderr

    @pytest.mark.parametrize(
        "url", ["a", "a:1", "nats://a", "tls://u:p@a:1, b", "ws://a/path", "wss://[::1]"]
    )
    def test_every_url_that_nats_py_takes_is_accepted(self, url: str) -> None:
        assert check("--nats", url).exit_code == 0

    def test_error_names_the_variable(self) -> None:
        assert "LIFTENVELOPE_SERVE_NATS_CREDS needs --nats" in check(NATS_CREDS="x").stderr
        assert "LIFTENVELOPE_SERVE_REPLICAS" in check(REPLICAS="6").stderr
        limit = check(LIMIT_MAX_CALLS="0").stderr
        assert "LIFTENVELOPE_SERVE_LIMIT_MAX_CALLS: max_calls must be at least 1, got 0" in limit

    def test_unknown_variable_is_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        assert check(REPLICA="3", LIMIT_MAX_CALL="3", LOG_LEVEL="info").exit_code == 0
        assert caplog.messages == [
            f"the environment variable {PREFIX}LIMIT_MAX_CALL is unknown and has no effect: "
            f"did you mean {PREFIX}LIMIT_MAX_CALLS?",
            f"the environment variable {PREFIX}REPLICA is unknown and has no effect: "
            f"did you mean {PREFIX}REPLICAS?",
        ]

    def test_files_that_do_not_fit(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / name).mkdir()
            Certificates(tmp_path / name)
        files = {name: str(tmp_path / name) for name in ("a/cert.pem", "a/key.pem", "b/key.pem")}
        fitting = ("--tls-cert", files["a/cert.pem"], "--tls-key", files["a/key.pem"])
        assert check(*fitting).exit_code == 0
        for prefix, nats in (("--", ()), ("--nats-", NATS)):
            done = check(
                *nats, f"{prefix}tls-cert", files["a/cert.pem"], f"{prefix}tls-key", files["b/key.pem"]
            )
            assert done.exit_code == 2
            assert "must be PEM files that belong together" in done.stderr

    def test_key_with_a_password_is_refused_without_asking(self, tmp_path: Path) -> None:
        Certificates(tmp_path)
        encrypted = tmp_path / "encrypted.pem"
        command = ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", str(tmp_path / "key.pem")]
        subprocess.run([*command, "-out", str(encrypted)], check=True, capture_output=True)
        done = check("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(encrypted))
        assert done.exit_code == 2
        assert "the key is encrypted" in done.stderr

    def test_policy_that_can_not_be_parsed(self, tmp_path: Path) -> None:
        certificates = Certificates(tmp_path).gateway_config
        files = [f"--{name.replace('_', '-')}={path}" for name, path in certificates.items()]
        policy = tmp_path / "policy.csv"
        for text, error in (("p, app", "line 1 must be"), ("p, " + "a" * 200_000, "line 1")):
            policy.write_text(text)
            done = check(*files, "--policy", str(policy))
            assert done.exit_code == 2
            assert error in done.stderr
            assert "Traceback" not in done.stderr
        policy.write_text("p, app, *, FetchMetadata")
        assert check(*files, "--policy", str(policy)).exit_code == 0

    @pytest.mark.parametrize(
        ("nats", "login"),
        [((), {"value": True, "origin": "policy"}), (NATS, {"value": False, "origin": "default"})],
    )
    def test_policy_shows_that_the_server_it_starts_needs_a_login(
        self, tmp_path: Path, nats: tuple[str, ...], login: dict[str, object]
    ) -> None:
        files = [
            f"--{name.replace('_', '-')}={path}"
            for name, path in Certificates(tmp_path).gateway_config.items()
        ]
        policy = tmp_path / "policy.csv"
        policy.write_text("p, app, *, FetchMetadata")
        assert checked(*nats, *files, "--policy", str(policy))["nats"]["login"] == login

    def test_seed_is_checked_and_not_shown(self, tmp_path: Path) -> None:
        seed = tmp_path / "seed"
        seed.write_bytes(b"no seed")
        done = check(*NATS, "--nats-nkey-seed", str(seed))
        assert done.exit_code == 2
        assert "must be a file with the seed of an nkey" in done.stderr
        seed.write_bytes(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))
        assert check(*NATS, "--nats-nkey-seed", str(seed)).exit_code == 0
        shown = check(*NATS, "--nats-nkey-seed", seed.read_text())
        assert shown.exit_code == 2
        assert seed.read_text() not in shown.stderr

    def test_login_without_nkeys_says_what_to_install(self, tmp_path: Path) -> None:
        (tmp_path / "seed").touch()
        code = "import sys; sys.modules['nkeys'] = None; from liftenvelope.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "serve", "--check", *NATS, "--nats-nkey-seed", tmp_path / "seed"],
            capture_output=True, text=True, timeout=150, check=False, env={**os.environ},
        )  # fmt: skip
        assert done.returncode == 2
        assert "run pip install nkeys" in done.stderr

    def test_json_needs_check(self) -> None:
        done = CliRunner().invoke(root, ["serve", "--json"])
        assert done.exit_code == 2
        assert "--json needs --check" in done.stderr

    def test_nothing_is_created(self, tmp_path: Path) -> None:
        assert check("--data-dir", str(tmp_path / "a" / "b")).exit_code == 0
        assert not (tmp_path / "a").exists()

    def test_error_text_has_no_color_codes(self) -> None:
        assert click.unstyle(check("--replicas", "9").stderr) == check("--replicas", "9").stderr
