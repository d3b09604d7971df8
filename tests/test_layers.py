"""The house's plan, enforced: imports go up the list of layers, files are small, names say something."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "liftenvelope"
SOURCES = sorted(PACKAGE.rglob("*.py"))
STUBS = sorted(PACKAGE.rglob("*.pyi"))
CYTHON = sorted((ROOT / "src").glob("*.p[yx][xdi]"))

#: A module may import those above its line; those in one line may not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("_backoff", "_showing", "_version", "_wire"),
    ("errors",),
    ("_checks", "_deadlines", "_secrets"),
    ("_logs",),
    ("types",),
    ("_native",),
    ("envelope",),
    ("_arrow_rows",),
    ("arrow", "partition"),
    ("payload",),
    ("correlation",),
    ("nats",),
    ("_pb",),
    ("rpc",),
    ("consumers",),
    ("jetstream", "client"),
    ("group",),
    ("gateway",),
    ("bulk",),
    ("spark", "archive"),
    ("testing",),
    ("otel", "monitor"),
    ("cli",),
    ("__init__", "__main__"),
)
#: Layers inside ``liftenvelope/_native``: twins, the extensions from ``src``, and the dispatcher above them.
NATIVE: tuple[tuple[str, ...], ...] = (
    ("protobuf",),
    ("values", "delivered"),
    ("blocks",),
    ("nats_walker", "partition_buffer"),
    ("payloads", "columns", "frames", "jet", "put", "direct", "handout"),
    ("env", "requests"),
    ("_fastenv", "_fastframes", "_fastjet", "_fastput", "_fastdirect"),
    ("batch", "acks", "gate", "calls"),
    ("_fastbatch", "_fastacks", "_fastgate", "_fasthandout", "bulk"),
    ("_fastbulk",),
    ("__init__",),
)
#: Commands do not import each other.
COMMANDS = (
    *("account", "archive", "backup", "bench", "consumer", "cursor", "decode", "demo", "dev", "doctor"),
    *("group", "monitor", "publish", "read", "restore", "serve", "stream", "subscribe", "top", "write"),
)
#: Rooms and modules inside a package, the ground first: each imports only from lines above its own.
ROOMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "jetstream": (
        (
            "_events",
            "_records",
            "_server_version",
            "abandoned",
            "errors",
            "lagging",
            "names",
            "statuses",
            "watch",
        ),
        ("_advisories", "_consumer_config", "_event_log", "api"),
        ("publish_frames", "stream_config", "subject_filter"),
        ("_publishing", "_stored", "infos", "message"),
        ("_consumer_requests", "_leaders", "_pulling", "listing"),
        ("consuming",),
        ("_prefetching",),
        ("_consumer",),
        ("_ordered",),
        ("_stream",),
        ("context", "counting"),
        ("bucket",),
        ("__init__",),
    ),
    "client": (
        ("_events", "_feed", "_forwarding", "_recent"),
        ("positions", "publish_codec", "_publish_summary", "retries"),
        ("_event_log", "_portal", "failures"),
        ("metadata",),
        ("options", "partition_read"),
        ("_brokers", "start_lookup"),
        ("core", "publish_permission"),
        ("_health", "_streams", "cursor_names"),
        ("_cursors", "publish_checks"),
        ("_reading", "_sending"),
        ("_parts", "activity", "_publish_many"),
        ("_consuming", "_publishing"),
        ("client",),
        ("binding",),
        ("blocking",),
        ("__init__",),
    ),
    "group": (
        ("_loads", "clock", "errors", "events", "names"),
        ("_event_log", "assignors"),
        ("state",),
        ("_requests", "_sources", "bounds"),
        ("_topics", "membership"),
        ("_liftbridge", "wire"),
        ("_controller", "calls"),
        ("_client", "_member", "directory"),
        ("_serving",),
        ("coordinator",),
        ("__init__",),
    ),
    "gateway": (
        ("limits", "notify", "signals", "toml_file"),
        ("_protocol",),
        ("_cluster",),
        ("_partitions",),
        ("_clients",),
        ("_acks",),
        ("_core",),
        ("_streams",),
        ("_readers", "_publishing"),
        ("_leader", "_calls"),
        ("_monitoring",),
        ("_lifecycle",),
        ("_families",),
        ("_gateway",),
        ("metrics",),
        ("_program",),
        ("embedded", "http_endpoint"),
        ("serving",),
        ("_workers",),
        ("worker", "supervisor"),
        ("__init__", "__main__"),
    ),
    "bulk": (
        ("errors", "idle", "narrowing", "observing", "ranges"),
        ("access",),
        ("_engine",),
        ("_notebook", "_progress_bar", "_outgoing"),
        ("_jetstream", "_liftbridge"),
        ("listing", "sources"),
        ("_writes",),
        ("writing",),
        ("_reads",),
        ("_archive", "_scan", "tables"),
        ("_snapshots", "files"),
        ("__init__",),
    ),
    "cli": (
        ("_output",),
        ("_options",),
        ("_connecting",),
        ("_checks", "_groups", "_publishing", "_serving", "_streams"),
        ("_demo_job", "_latencies", "_runs", "_top_screen"),
        COMMANDS,
        ("_root",),
        ("__init__",),
    ),
}
#: Modules that a room may have. A smaller room is not worth a folder, a larger one is two rooms.
ROOM_SIZES = range(3, 13)
#: Modules of ``_native`` that other packages may import from. The dispatcher hands out the rest, because
#: ``from liftenvelope._native.env import ...`` takes the twin even if the extension is loaded.
SHARED = {"payloads", "protobuf", "values"}
RANK = {name: rank for rank, line in enumerate(LAYERS) for name in line}
INNER_RANK = {name: rank for rank, line in enumerate(NATIVE) for name in line}
#: What the order alone would allow.
FORBIDDEN = {
    "gateway": {"client"},
    "bulk": {"gateway", "group"},
    "spark": {"gateway"},
    "otel": {"testing", "spark", "archive"},
    "monitor": {"testing", "spark", "archive", "gateway", "bulk"},
    "__init__": {"spark", "archive", "testing", "cli", "gateway", "bulk", "otel", "monitor"},
    # Servers to test against: of the package's own work no more than what it takes to ask them.
    "testing": set(RANK) - {"errors", "_version", "_checks", "_pb", "rpc", "gateway"},
}
#: `rebuild` makes a pickled value with the loaded backend, so it asks the dispatcher when it is called.
INNER_EXCEPTIONS = {("values", "__init__")}
#: Class names that stand for more than one thing, and why. Every other class name stands for one.
REPEATED = {
    # Public: users import the name from a package that also says which server it is about.
    "AckPolicy": "liftenvelope: when the server acks a publish; jetstream: how a consumer acks messages",
    "Consumer": "client: member of a Liftbridge group; jetstream: consumer of a stream",
    "GroupInfo": "client and group: a group, as each protocol describes it",
    "Message": "liftenvelope: an envelope; jetstream: a delivered message",
    "StreamInfo": "client: a Liftbridge stream; jetstream: a JetStream stream",
    # Compiled pieces are reached by the name of the piece: `batch.Column`, `put.Column`.
    "Column": "_native: values of a batch to encode; values of a table to publish",
    "MessageReader": "_native: cuts a gRPC call into messages; client: hands out messages",
    "_Head": "_native: lines that each twin reads by itself, like its extension",
}
#: Imports that close a circle, each with its reason.
CIRCLES = {
    ("liftenvelope._native.values", "liftenvelope._native"): "a pickled value is made by the loaded twin",
    ("liftenvelope.errors", "liftenvelope.envelope"): "PublishError carries its ack, also in pickles",
}
#: Modules without an underscore that no other package imports, and who uses them.
ENTRIES = {
    "liftenvelope.bulk.errors": "users: the errors that their tracebacks name",
    "liftenvelope.bulk.tables": "users: the writers of tables, which liftenvelope.bulk hands out",
    "liftenvelope.client.activity": "users: the classes of events, in docs/client-activity.md",
    "liftenvelope.gateway.metrics": "users: the collector for prometheus_client, in docs/operating.md",
    "liftenvelope.payload.errors": "users: the errors that their tracebacks name",
    "liftenvelope.spark.errors": "users: the errors that their tracebacks name",
    "liftenvelope.spark.functions": "users: the functions of columns, in docs/spark.md",
    "liftenvelope.testing.plugin": "pytest: entry point of the fixtures",
}
#: Sans-io: no event loop, no socket, no clock, no thread.
#: A ``Deadline`` reads the clock, so that shells need not.
SANS_IO = {"errors", "types", "envelope", "_arrow_rows", "arrow", "correlation", "partition", "payload"} | {
    name for name in RANK if name.startswith("_")
}
SANS_IO -= {"_deadlines", "_pb", "__init__", "__main__"}
IO_MODULES = {"asyncio", "socket", "selectors", "ssl", "time", "threading", "signal", "subprocess"}


def unit_of(path: Path) -> str:
    """The name in LAYERS that a source file stands under."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py") if path.suffix == ".py" else "_native"


def for_types_alone(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If):
        return False
    names = (getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node.test))
    return "TYPE_CHECKING" in names


def imported(tree: ast.AST, package: str, *, types: bool = False) -> set[str]:
    """Dotted names that a module imports when it runs, inside functions as well.

    With ``types`` the set includes imports under ``TYPE_CHECKING``.
    """
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and for_types_alone(node) and not types:
            names |= imported(ast.Module(node.orelse, []), package)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) + "." if node.level else ""
            module = (base + (node.module or "")).rstrip(".")
            names |= {f"{module}.{alias.name}" for alias in node.names}
        else:
            names |= imported(node, package, types=types)
    return names


def package_of(path: Path) -> str:
    """Dotted name of the package that a source file belongs to. Extensions belong to ``_native``."""
    parts = path.relative_to(PACKAGE).parent.parts if path.suffix in (".py", ".pyi") else ("_native",)
    return ".".join(("liftenvelope", *parts))


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed source. Every rule reads every source, so each is parsed once."""
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path, *, types: bool = False) -> frozenset[str]:
    return frozenset(_read_imports(path, types=types))


def _read_imports(path: Path, *, types: bool) -> set[str]:
    if path.suffix in (".py", ".pyi"):
        return imported(tree_of(path), package_of(path), types=types)
    found = re.findall(r"^\s*from (liftenvelope\S*) import (\([^)]*\)|.*)", path.read_text(), re.MULTILINE)
    return {
        f"{module}.{name}" for module, names in found for name in re.findall(r"(?<! as )\b(?!as\b)\w+", names)
    }


def violations(unit: str, names: Set[str]) -> list[str]:
    """Return the imported names that the layers do not allow."""
    bad = []
    for name in sorted(names):
        target = name.split(".")[1] if name.startswith("liftenvelope.") else unit
        if target not in RANK:  # something that the root itself defines
            bad.append(f"{unit} imports {name}: not in LAYERS")
        elif target == unit:
            continue
        elif target == "_native" and is_inside(name):
            bad.append(f"{unit} may not import {name}: take it from liftenvelope._native")
        elif RANK[target] >= RANK[unit] or target in FORBIDDEN.get(unit, ()):
            bad.append(f"{unit} may not import {name}")
    return bad


def private_imports(package: str, names: Set[str]) -> list[str]:
    """Imported names that contain a private module or a private name of another package.

    Private modules in the root, and ``_native`` and ``_pb``, are ground for the whole package.
    """
    found = []
    for name in sorted(names):
        unit, *parts = name.removeprefix("liftenvelope.").split(".")
        if not name.startswith("liftenvelope.") or unit in ("_native", "_pb"):
            continue
        for depth, part in enumerate(parts):
            owner = ".".join(("liftenvelope", unit, *parts[:depth]))
            is_private = part.startswith("_") and not part.endswith("__")
            if is_private and not f"{package}.".startswith(f"{folder_of(owner)}."):
                found.append(f"{package} may not import {name}: {part} is private to {folder_of(owner)}")
                break
    return found


def folder_of(owner: str) -> str:
    """Dotted name of the package whose modules may import private names of a package or module.

    A private name of a module in the root is private to that module.
    """
    path = PACKAGE.joinpath(*owner.split(".")[1:])
    return owner if path.is_dir() or path.parent == PACKAGE else owner.rpartition(".")[0]


def is_inside(name: str) -> bool:
    """Return True if the name belongs to a module that only the dispatcher may hand out."""
    module, *names = name.split(".")[2:] or [""]
    return module.startswith("_fast") or (module not in SHARED and bool(names))


def inner_violations(module: str, names: Set[str]) -> list[str]:
    """Imports between modules of ``_native`` that NATIVE does not allow."""
    parts = [name.split(".") for name in sorted(names) if name.startswith("liftenvelope._native")]
    targets = [part[2] if len(part) > 2 and part[2] in INNER_RANK else "__init__" for part in parts]
    return [
        f"{module} may not import {target}"
        for target in targets
        if INNER_RANK[target] >= INNER_RANK[module] and (module, target) not in INNER_EXCEPTIONS
    ]


def place_in(package: str, path: Path) -> str:
    """The name in ROOMS that a source file of a package stands under."""
    return path.relative_to(PACKAGE / package).parts[0].removesuffix(".py")


def room_violations(package: str, place: str, names: Set[str]) -> list[str]:
    """Imports inside a package that ROOMS does not allow."""
    ranks = {name: rank for rank, line in enumerate(ROOMS[package]) for name in line}
    own = f"liftenvelope.{package}"
    found = []
    for name in sorted(names):
        if name == own or name.startswith(f"{own}."):
            part = name.removeprefix(own).lstrip(".").partition(".")[0]
            target = part if part in ranks else "__init__"
            if target != place and ranks[target] >= ranks[place]:
                found.append(f"{own}: {place} may not import {name}")
    return found


def is_docstring_alone(path: Path) -> bool:
    tree = tree_of(path)
    return ast.get_docstring(tree) is not None and len(tree.body) == 1


def module_name(path: Path) -> str:
    """Dotted name of the module of a source file, a stub or a Cython file."""
    if path in CYTHON:
        return f"liftenvelope._native.{path.stem}"
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_graph(sources: Iterable[Path]) -> dict[str, set[str]]:
    """Every module with the modules that it imports: at run time, inside functions, and for types alone."""
    names = {path: imports_of(path, types=True) for path in sources}
    graph: dict[str, set[str]] = {module_name(path): set() for path in names}
    for path, imports in names.items():
        for name in imports:
            module = name
            while module and module not in graph:
                module = module.rpartition(".")[0]
            if module and module != module_name(path):
                graph[module_name(path)].add(module)
    return graph


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One import circle, with its first module at both ends; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        modules: list[str] = exc.args[1]
        return modules[::-1]  # each one imports the next
    return []


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def faults_of(paths: Iterable[Path], check: Callable[[Path], object]) -> dict[str, object]:
    """Return the findings of a rule by file. Hundreds of tests, one per file, cost more than their work."""
    return {name_of(path): found for path in paths if (found := check(path))}


def test_imports_go_up() -> None:
    def check(path: Path) -> object:
        if path.suffix in (".pxd", ".pxi"):
            return imports_of(path)
        unit = unit_of(path)
        return violations(unit, imports_of(path)) if unit in RANK else f"{unit} has no place in LAYERS"

    assert faults_of(SOURCES + CYTHON, check) == {}


def test_imports_inside_native_go_up() -> None:
    def check(path: Path) -> object:
        if path.stem not in INNER_RANK:
            return f"{path.stem} has no place in NATIVE"
        return inner_violations(path.stem, imports_of(path))

    native = [path for path in SOURCES + CYTHON if unit_of(path) == "_native"]
    assert faults_of([path for path in native if path.suffix in (".py", ".pyx")], check) == {}


@pytest.mark.parametrize("package", ROOMS)
def test_imports_between_rooms_go_up(package: str) -> None:
    """Imports under ``TYPE_CHECKING`` count as well: they are part of the picture that a reader has."""

    def check(path: Path) -> object:
        return room_violations(package, place_in(package, path), imports_of(path, types=True))

    sources = [path for path in SOURCES if unit_of(path) == package]
    assert {place_in(package, path) for path in sources} == {name for line in ROOMS[package] for name in line}
    assert faults_of(sources, check) == {}


@pytest.mark.parametrize("package", ROOMS)
def test_room_has_a_few_modules_and_an_init_without_code(package: str) -> None:
    """Importing one module of a room loads no other module of it."""
    rooms = sorted(path for path in (PACKAGE / package).glob("_*") if (path / "__init__.py").exists())
    assert rooms
    for room in rooms:
        modules = sorted(path.stem for path in room.glob("*.py") if path.name != "__init__.py")
        assert len(modules) in ROOM_SIZES, f"{name_of(room)} has {len(modules)} modules"
        assert [name for name in modules if name.startswith("_")] == []
        assert is_docstring_alone(room / "__init__.py"), name_of(room)


def test_no_import_of_private_module_or_name_of_another_package() -> None:
    def check(path: Path) -> object:
        return private_imports(package_of(path), imports_of(path, types=True))

    assert faults_of(SOURCES + CYTHON, check) == {}


def test_module_is_underscored_unless_another_package_imports_it() -> None:
    """In ``cli``, modules without an underscore are the commands."""
    graph = import_graph([path for path in SOURCES if unit_of(path) not in ("_native", "_pb")])
    packages = {
        module: module.split(".")[1] for module in graph if module.count(".") == 2 and ".cli." not in module
    }
    imported_elsewhere = {
        target
        for module, targets in graph.items()
        for target in targets
        if packages.get(target) != packages.get(module, module.partition(".")[2].partition(".")[0])
    }
    plain = {module for module in packages if not module.rpartition(".")[2].startswith("_")}
    assert len(plain) > 50
    assert sorted(plain - imported_elsewhere) == sorted(ENTRIES)


def test_sans_io() -> None:
    def check(path: Path) -> object:
        return {name.split(".")[0] for name in imports_of(path)} & IO_MODULES

    sans_io = [path for path in SOURCES if unit_of(path) in SANS_IO]
    assert sans_io
    assert faults_of(sans_io, check) == {}


def test_no_timer_is_asked_for_its_time() -> None:
    """uvloop returns a handle without ``when()`` for a timer that is due at once."""

    def check(path: Path) -> object:
        return ".when()" in path.read_text()

    assert faults_of(SOURCES + CYTHON, check) == {}


def test_sizes() -> None:
    def check(path: Path) -> object:
        lines = len(path.read_text().splitlines())
        return lines if lines >= (500 if path.suffix == ".py" else 900) else None

    assert faults_of(SOURCES + CYTHON, check) == {}


def test_root_has_few_files() -> None:
    files = [path.name for path in PACKAGE.iterdir() if path.is_file()]
    assert len(files) <= 17, files


def test_names() -> None:
    banned = {"utils", "util", "common", "helpers", "helper", "misc"}

    def check(path: Path) -> object:
        return {part.strip("_") for part in path.relative_to(ROOT).with_suffix("").parts} & banned

    assert faults_of(SOURCES + CYTHON, check) == {}


def classes_in(tree: ast.AST) -> list[str]:
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        if unit_of(path) != "_pb":
            for name in classes_in(tree_of(path)):
                places.setdefault(name, []).append(name_of(path))
    assert len(places) > 500
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in repeated.items() if name not in REPEATED} == {}


class TestTheRules:
    """The checks find forbidden imports."""

    @pytest.mark.parametrize(
        ("unit", "source"),
        [
            ("envelope", "from liftenvelope import arrow"),
            ("envelope", "from liftenvelope.correlation import PendingAcks"),
            ("errors", "def f():\n    import liftenvelope.envelope"),
            ("client", "from liftenvelope.jetstream import Consumer"),
            ("jetstream", "import liftenvelope.client.client"),
            ("gateway", "from liftenvelope import client"),
            ("spark", "try:\n    from liftenvelope.gateway import run\nexcept ImportError:\n    pass"),
            ("__init__", "from liftenvelope.spark import sources"),
            ("testing", "from liftenvelope.nats import AckInbox"),
            ("nats", "from liftenvelope.new_thing import x"),
            ("arrow", "from liftenvelope._native.batch import Column"),
            ("arrow", "from liftenvelope._native import _fastbatch"),
            ("types", "from liftenvelope._native import env"),
            ("types", "if TYPE_CHECKING:\n    pass\nelse:\n    from liftenvelope import envelope"),
        ],
    )
    def test_found(self, unit: str, source: str) -> None:
        assert len(violations(unit, imported(ast.parse(source), "liftenvelope"))) == 1

    @pytest.mark.parametrize(
        ("unit", "source"),
        [
            ("arrow", "from liftenvelope.envelope import unmarshal_ack"),
            ("errors", "if TYPE_CHECKING:\n    from liftenvelope.envelope import Ack"),
            ("group", "from liftenvelope.jetstream import Consumer"),
            ("cli", "from liftenvelope import gateway, spark, testing"),
            ("arrow", "from liftenvelope._native import batch"),
            ("arrow", "from liftenvelope._native.payloads import read_stored"),
            ("testing", "from liftenvelope.rpc import blocking"),
            ("nats", "import nats.aio\nimport asyncio"),
        ],
    )
    def test_allowed(self, unit: str, source: str) -> None:
        assert violations(unit, imported(ast.parse(source), "liftenvelope")) == []

    @pytest.mark.parametrize(
        ("module", "source"),
        [
            ("values", "from liftenvelope._native.payloads import read_stored"),
            ("env", "from liftenvelope._native import batch"),
            ("_fastenv", "from liftenvelope import _native"),
        ],
    )
    def test_found_inside_native(self, module: str, source: str) -> None:
        assert len(inner_violations(module, imported(ast.parse(source), "liftenvelope._native"))) == 1

    @pytest.mark.parametrize(
        ("place", "source"),
        [
            ("_acks", "from liftenvelope.gateway._core import Core"),
            ("_acks", "from liftenvelope.gateway import _core"),
            ("_acks", "if TYPE_CHECKING:\n    from liftenvelope.gateway._core import Core"),
            ("_readers", "from liftenvelope.gateway._publishing.intake import Intake"),
            ("_core", "from liftenvelope.gateway import Gateway"),
            ("_core", "import liftenvelope.gateway"),
        ],
    )
    def test_import_of_a_room_below_is_found(self, place: str, source: str) -> None:
        names = imported(ast.parse(source), f"liftenvelope.gateway.{place}", types=True)
        assert len(room_violations("gateway", place, names)) == 1

    @pytest.mark.parametrize(
        ("place", "source"),
        [
            ("_core", "from liftenvelope.gateway._acks.copies import CopyAcks"),
            ("_core", "from liftenvelope.gateway import limits"),
            ("_acks", "from liftenvelope.gateway._acks.flow import AckFlow"),
            ("_acks", "from . import flow"),
            ("_acks", "from liftenvelope.nats.link import Link"),
            ("__init__", "from liftenvelope.gateway._gateway import Gateway"),
        ],
    )
    def test_import_of_a_room_above_is_allowed(self, place: str, source: str) -> None:
        names = imported(ast.parse(source), f"liftenvelope.gateway.{place}", types=True)
        assert room_violations("gateway", place, names) == []

    @pytest.mark.parametrize(
        ("package", "source"),
        [
            ("gateway", "from liftenvelope.testing._ports import free_port"),
            ("gateway", "from liftenvelope.testing import _ports"),
            ("gateway", "import liftenvelope.testing._ports"),
            ("gateway", "if TYPE_CHECKING:\n    from liftenvelope.testing._ports import free_port"),
            ("client", "from liftenvelope.testing._servers.build import Portal"),
            ("gateway", "from liftenvelope.rpc.status import _unquoted"),
            ("gateway", "from liftenvelope.arrow import _headers"),
            ("", "from liftenvelope.rpc.status import _unquoted"),
        ],
    )
    def test_private_import_is_found(self, package: str, source: str) -> None:
        place = f"liftenvelope.{package}".rstrip(".")
        assert len(private_imports(place, imported(ast.parse(source), place, types=True))) == 1

    @pytest.mark.parametrize(
        ("package", "source"),
        [
            ("testing", "from liftenvelope.testing._ports import free_port"),
            ("rpc", "from .status import _unquoted"),
            ("client.blocking", "from liftenvelope.client._portal import _opened"),
            ("gateway", "from liftenvelope._checks import as_text"),
            ("gateway", "from liftenvelope._version import __version__"),
            ("gateway", "from liftenvelope._pb import api_pb2"),
            ("", "if TYPE_CHECKING:\n    from liftenvelope._native._fastenv import Ack"),
            ("gateway", "import nats._private"),
        ],
    )
    def test_private_import_is_allowed(self, package: str, source: str) -> None:
        place = f"liftenvelope.{package}".rstrip(".")
        assert private_imports(place, imported(ast.parse(source), place, types=True)) == []

    def test_relative_imports_are_resolved(self) -> None:
        tree = ast.parse("from . import a\nfrom .b import c\nfrom ..envelope import d")
        names = {"liftenvelope.nats.a", "liftenvelope.nats.b.c", "liftenvelope.envelope.d"}
        assert imported(tree, "liftenvelope.nats") == names

    def test_cython_imports_are_read(self) -> None:
        names = imports_of(ROOT / "src" / "_fastenv.pyx")
        assert {"liftenvelope._native.env", "liftenvelope._checks.storable_headers"} <= names

    def test_every_source_is_looked_at(self) -> None:
        assert len(SOURCES) > 20
        assert {path.name for path in CYTHON} >= {
            "_fastenv.pyx",
            "_fastbatch.pyx",
            "_cursor.pxd",
            "_columns.pxi",
        }
