"""``Serving.from_json``: settings of a gateway as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.gateway import Limits
from liftenvelope.gateway.__main__ import main
from liftenvelope.gateway.serving import Serving

URL = {"nats_url": "nats://127.0.0.1:4222"}


def test_settings_are_read_from_json() -> None:
    gateway = {"port": 9292, "limits": {"max_connections": 5}, "max_message_bytes": 70_000}
    found = Serving.from_json({**URL, "drain": 1, "http": None, "connect": {"user": "a"}, "gateway": gateway})
    assert (found.drain, found.http, found.connect) == (1, None, {"user": "a"})
    assert found.gateway == {**gateway, "limits": Limits(max_connections=5)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"drian": 3}, "'drian' is unknown in the settings: did you mean drain?"),
        ({"connect": {"usr": "a"}}, "'usr' is unknown in connect: did you mean user?"),
        ({"connect": {"self": "a"}}, "'self' is unknown in connect: use one of allow_reconnect, "),
        ({"gateway": {"prot": 1}}, "'prot' is unknown in gateway: did you mean port?"),
        ({"gateway": {"nc": 1}}, "'nc' is unknown in gateway: use one of ack_timeout, "),
        ({"gateway": {"limits": {"max_conections": 1}}}, "unknown in limits: did you mean max_connections?"),
    ],
)
def test_unknown_setting_is_refused_by_its_name(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        Serving.from_json({**URL, **values})
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], "the settings must be a JSON object, got list"),
        ({"gateway": 1}, "gateway must be a JSON object, got int"),
        ({"connect": []}, "connect must be a JSON object, got list"),
        ({"gateway": {"limits": 3}}, "limits must be a JSON object, got int"),
        ({"drain": "x"}, "drain must be float, got str"),
        ({"nats_debug": 1}, "nats_debug must be bool, got int"),
        ({"tls_cert": 1, "tls_key": 2}, "tls_cert must be str, got int"),
        ({"gateway": {"port": True}}, "port must be int, got bool"),
        ({"gateway": {"host": 5}}, "host must be str, got int"),
        ({"gateway": {"limits": {"max_connections": "x"}}}, "max_connections must be an integer, got 'x'"),
    ],
)
def test_setting_of_the_wrong_type_is_refused(values: Any, expected: str) -> None:
    with pytest.raises(UsageTypeError) as caught:
        Serving.from_json({**URL, **values} if isinstance(values, dict) else values)
    assert expected in str(caught.value)


def test_program_names_an_unknown_setting_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "gateway.json"
    file.write_text(json.dumps({**URL, "drian": 3}))
    monkeypatch.setattr(sys, "argv", ["gateway", str(file)])
    assert main() == 1
    assert capsys.readouterr().err == "'drian' is unknown in the settings: did you mean drain?\n"
