"""The blocking client has what the async one has, and its generator refuses what it does not understand."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import liftenvelope

ROOT = Path(__file__).resolve().parents[3]
BLOCKING = ROOT / "liftenvelope" / "client" / "blocking"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("generate_blocking", ROOT / "protos/generate_blocking.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


generator = _load()
DUNDERS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
#: Without the parts of the client, whose public methods are those of Client.
CLASSES = [name for name in generator.TWINS if name not in generator.PARTS]


def pair(name: str) -> tuple[type, type]:
    module, twin = generator.TWINS[name]
    return (
        getattr(import_module(f"liftenvelope.client.{module}"), name),
        getattr(import_module(f"liftenvelope.client.blocking.{module}"), twin),
    )


def public(kind: type) -> dict[str, Any]:
    """Methods and properties by name, those of the bases as well."""
    names = [name for name in dir(kind) if not name.startswith("_") or name in DUNDERS]
    return {name: inspect.getattr_static(kind, name) for name in names}


def parameters(function: Any, besides: str) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found if one.name != besides]


@pytest.mark.parametrize("name", CLASSES)
def test_same_names_parameters_and_defaults(name: str) -> None:
    one, twin = pair(name)
    members = public(one)
    assert members
    for member, of_one in members.items():
        if name == "Client" and member == "open":
            continue  # the blocking client is open when it is made
        of_twin = inspect.getattr_static(twin, DUNDERS.get(member, member))
        assert isinstance(of_twin, property) == isinstance(of_one, property), member
        if not isinstance(of_one, property):
            assert parameters(of_twin, "") == parameters(of_one, ""), member
            assert not inspect.iscoroutinefunction(of_twin)
            assert not inspect.isasyncgenfunction(of_twin)


@pytest.mark.parametrize("name", CLASSES)
def test_blocking_client_has_no_names_of_its_own(name: str) -> None:
    one, twin = pair(name)
    known = {DUNDERS.get(member, member) for member in public(one)} | {"closed"}
    extra = {method for *_, method in generator.FED.values()}
    assert {member for member in dir(twin) if not member.startswith("_")} <= known | extra


@pytest.mark.parametrize("name", CLASSES)
def test_everything_is_documented(name: str) -> None:
    one, twin = pair(name)
    assert twin.__doc__
    for member, of_one in public(one).items():
        if of_one.__doc__ and not member.startswith("_") and not (name == "Client" and member == "open"):
            assert inspect.getattr_static(twin, member).__doc__, member


def test_connect() -> None:
    one, twin = liftenvelope.connect, liftenvelope.connect_blocking
    assert parameters(twin, "") == parameters(one, "")
    assert liftenvelope.BlockingClient.__name__ == "BlockingClient"


def test_the_files_are_up_to_date() -> None:
    files = generator.generate()
    assert {path.name for path in BLOCKING.glob("*.py")} == {*files, "__init__.py", "_base.py"}
    for name, text in files.items():
        assert (BLOCKING / name).read_text("utf-8") == text, f"{name}: run protos/generate_blocking.py"


@pytest.mark.parametrize("path", sorted(BLOCKING.glob("*.py")), ids=lambda path: path.stem)
def test_docstrings_speak_of_no_event_loop_syntax(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and path.name != "_base.py":
            assert not re.search(r"\b(async|await|awaited)\b", ast.get_docstring(node) or ""), node.name


class TestDocstrings:
    def test_examples(self) -> None:
        text = """Do it; ``async with`` opens it, see :meth:`Client.publish`.

        Example:
            >>> import asyncio, liftenvelope
            >>> async def main(addresses):
            ...     async with liftenvelope.connect(addresses) as client:
            ...         count = (await client.fetch_metadata()).partition_count("orders")
            ...         return [message async for message in client.subscribe("orders")]
            >>> asyncio.run(main(cluster.addresses))
        """
        adapted = generator.adapt(text, "nobody")
        assert (
            adapted
            == """Do it; ``with`` opens it, see :meth:`BlockingClient.publish`.

        Example:
            >>> import liftenvelope
            >>> def main(addresses):
            ...     with liftenvelope.connect_blocking(addresses) as client:
            ...         count = client.fetch_metadata().partition_count("orders")
            ...         return [message for message in client.subscribe("orders")]
            >>> main(cluster.addresses)
        """
        )

    def test_code_after_a_double_colon(self) -> None:
        text = "Do it.\n\n        Example::\n\n            ack = await publish()\n\n        To wait.\n"
        assert "ack = publish()" in generator.adapt(text, "nobody")

    @pytest.mark.parametrize("text", ["It is awaited.", "Of this event loop.", "Use ``await``."])
    def test_what_only_a_human_can_say_differently(self, text: str) -> None:
        with pytest.raises(generator.UnknownFormError, match="REWORDED"):
            generator.adapt(text, "nobody")

    def test_other_words_for_what_is_not_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(generator.REWORDED, "somebody", (("old", "new"),))
        assert generator.adapt("The old way.", "somebody") == "The new way."
        with pytest.raises(generator.UnknownFormError, match="does not say 'old'"):
            generator.adapt("The way.", "somebody")

    def test_long_lines_are_broken(self) -> None:
        word = ":class:`Subscription`"
        text = "Do it.\n\n    " + " ".join([word] * 4) + " and so on, until it is long.\n    The rest.\n"
        adapted = generator.adapt(text, "nobody").split("\n")
        assert max(map(len, adapted)) <= 110
        assert " ".join("\n".join(adapted).split()) == " ".join(
            text.replace("`Subscription", "`BlockingSubscription").split()
        )


def write(body: str) -> str:
    source = generator.Source("streams", ast.parse("from typing import Self\nimport asyncio\n" + body))
    source._learn(source.tree.body)
    text: str = generator.Writer(source).class_("Streams")
    return text


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            "async def f(self, a, *b, c=1, **d) -> int: ...",
            "self._portal.call(self._async.f(a, *b, c=c, **d))",
        ),
        ("def f(self, a: int, /) -> int: ...", "self._portal.run(lambda: self._async.f(a))"),
        ("async def f(self) -> Self: ...", "self._portal.call(self._async.f())\n        return self"),
        ("async def close(self) -> None: ...", "self._portal.end(self._async.close())"),
        ("def f(self) -> asyncio.Future[int]: ...", "self._portal.future(lambda: self._async.f())"),
        ("async def f(self) -> asyncio.Future[int]: ...", "self._portal.future(lambda: self._async.f())"),
    ],
)
def test_forms(method: str, expected: str) -> None:
    assert expected in write(f"class Streams:\n    {method}")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("class Other: ...", "has no class Streams"),
        ("class Streams:\n    async def f(self): ...", "says not what it returns"),
        ("class Base: ...\nclass Streams(Base): ...", "Base is not in TWINS"),
        ("class Streams:\n    @classmethod\n    def f(cls) -> int: ...", "decorators"),
        (
            "class Consumer: ...\nclass Streams:\n    def f(self, c: Consumer) -> int: ...",
            "takes Consumer",
        ),
        ("class Consumer: ...\nclass Streams:\n    def f(self) -> list[Consumer]: ...", "returns list"),
    ],
)
def test_forms_that_there_is_no_twin_for(body: str, why: str) -> None:
    with pytest.raises(generator.UnknownFormError, match=why):
        write(body)
