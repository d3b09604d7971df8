"""Load each compiled piece, or its readable twin in plain Python.

Each ``src/_fastX.pyx`` has a stub ``_fastX.pyi`` and a twin ``X.py`` here. Callers use ``_native.X``:

    from liftenvelope._native import frames

``from liftenvelope._native.frames import ...`` takes the twin even if the extension is loaded, so only the
modules of this folder may do that.

``BACKEND`` is ``"cython"`` or ``"python"``, for all pieces alike. The twins are loaded if an extension was
never built or if ``LIFTENVELOPE_NO_EXTENSIONS=1`` is set. In both cases
``LIFTENVELOPE_REQUIRE_EXTENSIONS=1`` raises ImportError instead. An extension that exists but fails to load
causes a RuntimeWarning, because its speed was expected.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final

__all__ = ["BACKEND", "acks", "batch", "bulk", "direct", "env", "frames", "gate", "handout", "jet", "put"]

#: Names of the pieces in the order in which they are loaded: ``X`` here, ``_fastX`` as an extension.
PIECES: Final = ("env", "batch", "frames", "jet", "acks", "gate", "bulk", "put", "direct", "handout")


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def _extensions_wanted() -> bool:
    forbidden = _is_set("LIFTENVELOPE_NO_EXTENSIONS")
    missing = [f"_fast{piece}" for piece in PIECES if find_spec(f"{__name__}._fast{piece}") is None]
    if _is_set("LIFTENVELOPE_REQUIRE_EXTENSIONS") and (forbidden or missing):
        what = f"{', '.join(missing)} not built" if missing else "LIFTENVELOPE_NO_EXTENSIONS is set as well"
        raise ImportError(f"LIFTENVELOPE_REQUIRE_EXTENSIONS is set, but {what}: run pip install . again")
    return not forbidden and not missing


def _load() -> tuple[str, dict[str, ModuleType]]:
    if _extensions_wanted():
        try:
            return "cython", {piece: import_module(f"{__name__}._fast{piece}") for piece in PIECES}
        except ImportError as exc:
            if _is_set("LIFTENVELOPE_REQUIRE_EXTENSIONS"):
                raise
            message = f"liftenvelope's compiled codec does not load ({exc}); using the slower Python one"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
    return "python", {piece: import_module(f"{__name__}.{piece}") for piece in PIECES}


class _Pieces(ModuleType):
    """Keeps each piece bound to the module that was loaded for it.

    The import system binds a submodule to its name in the package. Without this class, the first import of a
    twin, for example by a test, would replace the loaded extension in the middle of a run.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in PIECES:
            super().__setattr__(name, value)


BACKEND, _modules = _load()

# The stubs give the types of both backends: tests/twin/test_signatures.py compares the twins with them.
if TYPE_CHECKING:
    from liftenvelope._native import _fastacks as acks
    from liftenvelope._native import _fastbatch as batch
    from liftenvelope._native import _fastbulk as bulk
    from liftenvelope._native import _fastdirect as direct
    from liftenvelope._native import _fastenv as env
    from liftenvelope._native import _fastframes as frames
    from liftenvelope._native import _fastgate as gate
    from liftenvelope._native import _fasthandout as handout
    from liftenvelope._native import _fastjet as jet
    from liftenvelope._native import _fastput as put
else:
    acks = _modules["acks"]
    batch = _modules["batch"]
    bulk = _modules["bulk"]
    direct = _modules["direct"]
    env = _modules["env"]
    frames = _modules["frames"]
    gate = _modules["gate"]
    handout = _modules["handout"]
    jet = _modules["jet"]
    put = _modules["put"]
    sys.modules[__name__].__class__ = _Pieces
