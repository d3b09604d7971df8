"""Imports every module of the installed package, and prints as JSON which ones load and the other errors.

A program for an environment of its own: it imports nothing of the tests.
"""

import json
from importlib import import_module
from pathlib import Path

import liftenvelope


def modules() -> list[str]:
    root = Path(liftenvelope.__file__).parent
    files = (path.relative_to(root.parent) for path in root.rglob("*.py"))
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    return sorted(name for name in names if not name.endswith("__main__"))


def main() -> None:
    loaded: list[str] = []
    missing: dict[str, str] = {}
    for name in modules():
        try:
            import_module(name)
        except ImportError as exc:  # anything else ends the program: a broken module
            missing[name] = f"{type(exc).__name__}: {exc}"
        else:
            loaded.append(name)
    print(json.dumps({"backend": liftenvelope.BACKEND, "loaded": loaded, "missing": missing}))


if __name__ == "__main__":
    main()
