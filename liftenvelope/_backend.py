"""The one place that chooses between the Cython codec and its pure-Python twin.

``BACKEND`` is ``"cython"`` or ``"python"``. Python is used where the extension was never built, or where
``LIFTENVELOPE_NO_EXTENSIONS=1`` asks for it; ``LIFTENVELOPE_REQUIRE_EXTENSIONS=1`` makes that an error.
An extension that is there but does not load is reported, since the quick path was meant to be had.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_TWINS = {
    "_fastenv": "_envelope_py",
    "_fastbatch": "_batch_py",
    "_fastwire": "_frames_py",
    "_fastjet": "_jet_py",
    "_fastack": "_acks_py",
    "_fastgate": "_gate_py",
    "_fastbulk": "_bulk_py",
    "_fastput": "_put_py",
    "_fastdirect": "_direct_py",
}


def _extensions_wanted() -> bool:
    forbidden = os.environ.get("LIFTENVELOPE_NO_EXTENSIONS", "") not in ("", "0")
    required = os.environ.get("LIFTENVELOPE_REQUIRE_EXTENSIONS", "") not in ("", "0")
    missing = [name for name in _TWINS if find_spec(f"liftenvelope.{name}") is None]
    if required and (forbidden or missing):
        what = f"{', '.join(missing)} not built" if missing else "LIFTENVELOPE_NO_EXTENSIONS is set as well"
        raise ImportError(f"LIFTENVELOPE_REQUIRE_EXTENSIONS is set, but {what}: run pip install . again")
    return not forbidden and not missing


def _load() -> tuple[str, dict[str, ModuleType]]:
    if _extensions_wanted():
        try:
            return "cython", {name: import_module(f"liftenvelope.{name}") for name in _TWINS}
        except ImportError as exc:
            if os.environ.get("LIFTENVELOPE_REQUIRE_EXTENSIONS", "") not in ("", "0"):
                raise
            message = f"liftenvelope's compiled codec does not load ({exc}); using the slower Python one"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
    return "python", {name: import_module(f"liftenvelope.{twin}") for name, twin in _TWINS.items()}


BACKEND, _modules = _load()
codec = _modules["_fastenv"]
batch = _modules["_fastbatch"]
frames = _modules["_fastwire"]
jet = _modules["_fastjet"]
acks = _modules["_fastack"]
gate = _modules["_fastgate"]
bulk = _modules["_fastbulk"]
put = _modules["_fastput"]
direct = _modules["_fastdirect"]
