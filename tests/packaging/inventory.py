"""Lists the packages of an installation: a CycloneDX bill of materials, and a text with each licence."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.packaging.environments import Environment, requirement
from tests.packaging.interpreters import Interpreter, run

#: Every extra but ``spark``: PySpark brings some 300 Java libraries, whose licences are in its own archive.
EXTRAS = ("cli", "http", "monitor", "otel")
#: Copied into the package, so no metadata of a package names it.
UPLOT: Mapping[str, Any] = {
    "type": "library",
    "bom-ref": "uplot",
    "name": "uplot",
    "version": "1.6.32",
    "description": "Vendored in liftenvelope/monitor/page",
    "licenses": [{"license": {"id": "MIT"}}],
    "purl": "pkg:npm/uplot@1.6.32",
}


def write_inventory(interpreter: Interpreter, wheel: Path, outdir: Path, work: Path) -> Sequence[Path]:
    """Install the wheel into a fresh environment, list its packages in two files, and return their paths."""
    env = Environment(interpreter, work / "inventory")
    done = env.install("-q", requirement(wheel, EXTRAS))
    if done.code != 0:
        raise RuntimeError(f"{wheel.name} does not install: {done.errors}")
    command = ("-m", "cyclonedx_py", "environment", "--output-reproducible", "--mc-type", "library")
    bill = json.loads(run(sys.executable, *command, env.python))
    bill["components"].append(UPLOT)
    name = wheel.name.removesuffix("-py3-none-any.whl")
    bill_path = outdir / f"{name}.cdx.json"
    bill_path.write_text(json.dumps(bill, indent=1), "utf-8")
    licences_path = outdir / f"{name}-licences.txt"
    licences_path.write_text("".join(licence_lines(bill["components"])), "utf-8")
    return bill_path, licences_path


def licence_lines(components: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return one line for each component: name, version, licence.

    A component that names none says so: nobody may miss it.
    """
    lines = []
    for component in sorted(components, key=lambda each: str(each["name"]).lower()):
        named = (entry.get("expression") or _licence(entry) for entry in component.get("licenses", ()))
        licences = " and ".join(dict.fromkeys(filter(None, named))) or "names no licence"
        lines.append(f"{component['name']} {component['version']}: {licences}\n")
    return lines


def _licence(entry: Mapping[str, Any]) -> str:
    """Return the identifier or the first line of a licence; some packages give its whole text as its name."""
    licence = entry.get("license", {})
    text = str(licence.get("id") or licence.get("name", "")).strip()
    return text.splitlines()[0] if text else ""
