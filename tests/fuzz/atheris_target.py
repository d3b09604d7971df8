"""The same decoders under atheris, which is guided by the branches of the Python twin.

    pip install atheris && python tests/fuzz/atheris_target.py -runs=1000000 [libFuzzer's own options]

Not part of any gate: atheris has wheels for some versions of Python alone. `campaign.py` needs but gcc.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

atheris: Any = import_module("atheris")

TWINS = [f"liftenvelope.{name}" for name in ("_envelope_py", "_payloads_py", "_protobuf_py")]
with atheris.instrument_imports(include=TWINS):
    from liftenvelope import _envelope_py as slow
    from liftenvelope import _fastenv as fast
    from liftenvelope import _values_py as values
    from liftenvelope.errors import EnvelopeError

FIELDS = {"unmarshal_message": values.MESSAGE_FIELDS, "unmarshal_ack": values.ACK_FIELDS}


def outcome(read: Any, data: bytes, fields: tuple[str, ...]) -> Any:
    """The fields of what was read, or the class and the arguments of the error."""
    try:
        value = read(data)
    except EnvelopeError as error:
        return type(error), error.args
    return [getattr(value, name) for name in fields]


def one_input(data: bytes) -> None:
    """Hold the twins to one another. The first bytes of a sound header are put before most inputs."""
    kind = data[0] & 1 if data else 0
    for raw in (data, bytes.fromhex("b90e43b4000800") + bytes((kind,)) + data[1:]):
        for name, fields in FIELDS.items():
            ours, theirs = (outcome(getattr(twin, name), raw, fields) for twin in (fast, slow))
            if ours != theirs:
                raise AssertionError(f"{name} of {raw.hex()}: {ours} and {theirs}")


def main() -> None:
    """Run until libFuzzer's options say that it is enough."""
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
