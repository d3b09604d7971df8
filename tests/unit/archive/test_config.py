"""The file of ``liftenvelope archive``: what it says, and errors that name key and value."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from liftenvelope.archive import read_archive_config
from liftenvelope.archive.config import Maintenance
from liftenvelope.bulk import DeadLetter
from liftenvelope.errors import UsageError

PIPELINE = """
[[pipeline]]
name = "orders"
source = "nats://me:secret@127.0.0.1:4222"
stream = "ORDERS"
"""
TARGET = """
[pipeline.target]
path = "archive"
"""


def write(folder: Path, text: str) -> str:
    path = folder / "pipeline.toml"
    path.write_text(text)
    return str(path)


def test_options_reach_the_function_and_secrets_are_not_shown(tmp_path: Path) -> None:
    text = (
        f"{PIPELINE}interval = 5\npartitions = [0]\n[pipeline.access]\ntimeout = 3\n{TARGET}rotate_rows = 7\n"
    )
    config = read_archive_config(write(tmp_path, text))
    (pipeline,) = config.pipelines
    assert pipeline.options == {"partitions": [0], "rotate_rows": 7}
    assert (pipeline.interval, pipeline.access.options.timeout, pipeline.location) == (5.0, 3, "archive")
    assert "secret" not in repr(config.shown())
    assert config.shown()["pipeline"][0]["target"] == {"kind": "parquet", "path": "archive", "rotate_rows": 7}


def test_access_takes_tls_files_server_names_and_an_address_map(tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    text = f"""{PIPELINE.replace("nats://me:secret@127.0.0.1:4222", "liftbridge://h")}
[pipeline.access]
tls_ca = "{tmp_path}/ca.pem"
tls_server_name = {{ "inside:9292" = "broker.example" }}
address_map = {{ "inside:9292" = "127.0.0.1:19292" }}
{TARGET}"""
    (pipeline,) = read_archive_config(write(tmp_path, text)).pipelines
    access = pipeline.access.open()
    assert access.address_map == {"inside:9292": "127.0.0.1:19292"}
    assert access.tls_server_name == {"inside:9292": "broker.example"}
    assert access.context is not None
    assert access.context.cert_store_stats()["x509_ca"] == 1


TABLE = """
payload = { format = "json", schema = { id = "int64" } }
on_bad = { stream = "BAD", subject = "bad", source = "nats://me:secret@127.0.0.1:4223" }
[pipeline.target]
kind = "delta"
path = "lake"
commit_rows = 7
[pipeline.maintenance]
compact = true
expire_hours = 24
"""


def test_table_takes_a_payload_dead_letters_and_maintenance(tmp_path: Path) -> None:
    config = read_archive_config(write(tmp_path, PIPELINE + TABLE))
    (pipeline,) = config.pipelines
    assert pipeline.options["on_bad"] == DeadLetter(
        stream="BAD", subject="bad", source="nats://me:secret@127.0.0.1:4223"
    )
    assert pipeline.options["commit_rows"] == 7
    assert pipeline.maintenance == Maintenance(interval=3600.0, compact=True, expire_hours=24)
    shown = config.shown()["pipeline"][0]
    assert "secret" not in repr(shown)
    assert shown["maintenance"] == {"interval": 3600.0, "compact": True, "expire_hours": 24}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('payload = "xml"\n' + TARGET, "orders: payload must be .*, got 'xml'"),
        (
            'payload = { format = "json", shema = 1 }\n' + TARGET,
            "options of json must be some of .*, got 'shema'",
        ),
        (
            'payload = { format = "json", schema = { id = "int" } }\n' + TARGET,
            "'id' must be a type .*, got 'int'",
        ),
        ('payload = { format = "avro" }\n' + TARGET, "options of avro must be complete"),
        ('on_bad = { streem = "B" }\n' + TARGET, "on_bad streem is unknown: did you mean stream"),
        ('on_bad = { subject = "b" }\n' + TARGET, "on_bad stream must .*, got ''"),
        (
            'on_bad = { stream = "B", source = "http://me:s3cr3t@h" }\n' + TARGET,
            "orders: on_bad: a URL must be nats://host:port, .*, got 'http://h'",
        ),
        (
            'payload = "json"\non_bad = { stream = "B" }\n' + TARGET,
            "orders: on_bad: .*subject must be given for a dead letter stream of JetStream, got None",
        ),
        (
            'payload = "json"\non_bad = { stream = "B", source = "nats://h" }\n' + TARGET,
            "orders: on_bad: .*subject must be given",
        ),
        (
            'payload = "json"\non_bad = { stream = "B", subject = "" }\n' + TARGET,
            "on_bad: subject must not be",
        ),
        (
            'payload = "json"\non_bad = { stream = "ORDERS", subject = "b" }\n' + TARGET,
            "on_bad must name another stream than the one to read, got 'ORDERS'",
        ),
        ('on_bad = { stream = "B", subject = "b" }\n' + TARGET, "on_bad must be 'fail' without payload"),
        (
            '[pipeline.on_bad]\nstream = "B"\nsubject = "b"\n'
            '[pipeline.on_bad.access]\nuser = "me"\npassword = "s3cr3t"\n' + TARGET,
            "on_bad must be 'fail' without payload, got a table$",
        ),
        ('on_bad = "column"\n' + TARGET, "on_bad must be 'fail' without payload, got 'column'"),
        (
            'payload = "json"\non_bad = "nats://me:s3cr3t@h"\n' + TARGET,
            "on_bad must be one of .*, got 'nats://h'",
        ),
        ('interval = "nats://me:s3cr3t@h"\n' + TARGET, "interval must be .*, got .*"),
        (
            'payload = "json"\non_bad = "keep"\n' + TARGET,
            "on_bad must be one of 'fail', 'column', got 'keep'",
        ),
        (
            '[pipeline.on_bad]\nstream = "B"\n[pipeline.on_bad.access]\ntimeout = 0\n' + TARGET,
            r"\[pipeline.on_bad.access\] timeout must be .*, got 0",
        ),
        (
            TARGET + "[pipeline.maintenance]\ncompact = true\n",
            "must be for a table, iceberg or delta, got kind",
        ),
        (
            '[pipeline.target]\nkind = "iceberg"\ntable = "a.b"\n[pipeline.maintenance]\ncompact = true\n',
            r"\[pipeline.maintenance\] compact must be",
        ),
        (
            '[pipeline.target]\nkind = "delta"\npath = "a"\n[pipeline.maintenance]\nexpire_hours = 0\n',
            "expire_hours must be at least 1, got 0",
        ),
    ],
)
def test_errors_of_payloads_and_maintenance_name_the_key(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error) as caught:
        read_archive_config(write(tmp_path, PIPELINE + text))
    assert "s3cr3t" not in str(caught.value)


def test_source_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("nats://hidden:4222\n")
    text = f'[[pipeline]]\nsource_file = "{tmp_path}/url"\nstream = "A"\n{TARGET}'
    (pipeline,) = read_archive_config(write(tmp_path, text)).pipelines
    assert (pipeline.name, pipeline.source) == ("1", "nats://hidden:4222")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", r"must have 1 to 1000 tables \[\[pipeline\]\], got 0"),
        ("pipeline = 3", r"tables \[\[pipeline\]\], got int"),
        ("a = ", "must be TOML: "),
        ("[archiv]\n" + PIPELINE + TARGET, "archiv is unknown: did you mean archive?"),
        (
            "[archive]\nmax_active = 0\n" + PIPELINE + TARGET,
            r"\[archive\] max_active must be at least 1, got 0",
        ),
        ("[archive]\nretry_wait = -1\n" + PIPELINE + TARGET, r"\[archive\] retry_wait must be .*, got -1"),
        ("[archive]\nhttp = 'x'\n" + PIPELINE + TARGET, r"\[archive\] http"),
        (PIPELINE, r"orders: \[pipeline.target\] must be a table"),
        (
            PIPELINE + "interval = 0\n" + TARGET,
            "orders: interval must be a positive number of seconds, got 0",
        ),
        (PIPELINE + "pertitions = 1\n" + TARGET, "orders: pertitions is unknown: did you mean partitions?"),
        (
            PIPELINE + TARGET + "kind = 'orc'\n",
            r"kind must be one of 'parquet', 'iceberg', 'delta', got 'orc'",
        ),
        (PIPELINE + TARGET + "rotate_row = 1\n", "rotate_row is unknown: did you mean rotate_rows?"),
        (PIPELINE + TARGET + "start = 1\n", r"start is unknown: it is an option of \[\[pipeline\]\]"),
        (PIPELINE + TARGET + "filesystem = 's3'\n", "filesystem is unknown"),
        (
            PIPELINE + "[pipeline.access]\ntimeout = 0\n" + TARGET,
            r"\[pipeline.access\] timeout must be .*, got 0",
        ),
        (
            PIPELINE + "[pipeline.access]\ntls = false\ntls_ca = 'a.pem'\n" + TARGET,
            r"\[pipeline.access\] tls = false and tls_ca exclude each other",
        ),
        (
            PIPELINE + "[pipeline.access]\ntls_key = 'a.pem'\n" + TARGET,
            r"\[pipeline.access\] tls_key needs tls_cert; give both",
        ),
        (
            PIPELINE + "[pipeline.access]\ntls_ca = 'none.pem'\n" + TARGET,
            r"\[pipeline.access\] tls_ca, tls_cert, tls_key must be PEM files .*, got 'none.pem'",
        ),
        (
            PIPELINE + "[pipeline.access]\ntls_ca = 3\n" + TARGET,
            r"\[pipeline.access\] tls_ca must be str, got int",
        ),
        (
            PIPELINE + "[pipeline.access]\ntls_server_name = 'a'\n" + TARGET,
            r"\[pipeline.access\] tls_server_name must be None without tls, got 'a'",
        ),
        (
            PIPELINE + "[pipeline.access]\naddress_map = { a = 'b:1' }\n" + TARGET,
            r"\[pipeline.access\] address must be host:port, got 'a'",
        ),
        (PIPELINE + TARGET + PIPELINE + TARGET, "name must be different in each, got 'orders' twice"),
        (
            PIPELINE.replace("orders", "a b") + TARGET,
            "number 1: name must be up to 100 letters, .*, got 'a b'",
        ),
        (PIPELINE.replace("nats://", "http://") + TARGET, "orders: source"),
        (PIPELINE.replace("source", "source_file") + TARGET, "source_file must be a file that can be read"),
        ("[[pipeline]]\nstream = 'A'\n" + TARGET, "must have either source or source_file"),
        (PIPELINE.replace("ORDERS", "") + TARGET, "orders: stream must not be empty, got ''"),
    ],
)
def test_errors_name_key_and_value(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error) as caught:
        read_archive_config(write(tmp_path, text))
    assert "pipeline.toml" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--config must be a file that can be read"):
        read_archive_config(str(tmp_path / "none.toml"))
    (tmp_path / "long.toml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(UsageError, match="must have at most 1048576 bytes"):
        read_archive_config(str(tmp_path / "long.toml"))


def test_credentials_of_stores_and_catalogues_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(
        """
[[pipeline]]
name = "delta"
source = "nats://h"
stream = "A"
[pipeline.target]
kind = "delta"
path = "s3://lake/a"
storage_options = { AWS_REGION = "eu", AWS_SECRET_ACCESS_KEY = "hidden", AWS_SESSION_TOKEN = "hidden" }
[[pipeline]]
name = "iceberg"
source = "nats://h"
stream = "A"
[pipeline.target]
kind = "iceberg"
table = "db.t"
catalog = { type = "sql", uri = "postgresql://me:hidden@db/lake", credential = "hidden", token = "hidden" }
[[pipeline]]
name = "named"
source = "nats://h"
stream = "A"
[pipeline.target]
kind = "iceberg"
table = "db.t"
catalog = "lake"
[[pipeline]]
name = "nested"
source = "nats://h"
stream = "A"
[pipeline.target]
kind = "iceberg"
table = "db.t"
[pipeline.target.catalog]
type = "rest"
pwd = "hidden"
uris = ["https://me:hidden@one/", "https://two/"]
verify = false
s3.region = "eu"
s3.secret-access-key = "hidden"
"""
    )
    config = read_archive_config(str(path))
    delta, iceberg, named, nested = (one["target"] for one in config.shown()["pipeline"])
    assert "hidden" not in repr(config.shown())
    assert delta["storage_options"]["AWS_REGION"] == "eu"
    assert iceberg["catalog"] == {
        "type": "sql", "uri": "postgresql://db/lake", "credential": "***", "token": "***"
    }  # fmt: skip
    assert named["catalog"] == "lake"
    assert nested["catalog"] == {
        "type": "rest", "pwd": "***", "uris": ["https://one/", "https://two/"], "verify": "false",
        "s3.region": "eu", "s3.secret-access-key": "***",
    }  # fmt: skip
    assert config.pipelines[0].options["storage_options"]["AWS_SECRET_ACCESS_KEY"] == "hidden"


ICEBERG = f"""{PIPELINE}
[pipeline.target]
kind = "iceberg"
table = "db.t"
"""


def test_properties_with_dots_need_no_quotes(tmp_path: Path) -> None:
    text = """
properties = { write.target-file-size-bytes = 1000000, "write.format.default" = "parquet" }
[pipeline.target.catalog]
type = "rest"
s3.endpoint = "http://minio:9000"
s3.force-virtual-addressing = true
s3.connect-timeout = 2.5
"s3.region" = "eu"
auth.type = "oauth2"
auth.oauth2 = { client_id = "me", expires_in = 60 }
ssl.client = { cert = "c.pem", key = "k.pem" }
"""
    (pipeline,) = read_archive_config(write(tmp_path, ICEBERG + text)).pipelines
    assert pipeline.options["properties"] == {
        "write.target-file-size-bytes": "1000000", "write.format.default": "parquet"
    }  # fmt: skip
    assert pipeline.options["catalog"] == {
        "type": "rest", "s3.endpoint": "http://minio:9000", "s3.force-virtual-addressing": "true",
        "s3.connect-timeout": "2.5", "s3.region": "eu",
        # pyiceberg takes these two as tables.
        "auth": {"type": "oauth2", "oauth2": {"client_id": "me", "expires_in": 60}},
        "ssl": {"client": {"cert": "c.pem", "key": "k.pem"}},
    }  # fmt: skip


def test_property_is_given_once(tmp_path: Path) -> None:
    text = """
[pipeline.target.catalog]
s3.region = "eu"
"s3.region" = "us"
"""
    with pytest.raises(UsageError) as caught:
        read_archive_config(write(tmp_path, ICEBERG + text))
    assert str(caught.value).endswith(
        "[[pipeline]] orders: [pipeline.target.catalog] s3.region must be given once, got both s3.region and "
        '"s3.region"'
    )
