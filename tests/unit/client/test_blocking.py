"""The blocking client has what the async one has, and its stub shows what is there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

import liftenvelope
from liftenvelope.client import activity, client
from liftenvelope.client import blocking as module
from liftenvelope.client._consuming import checkpointer, consumer
from liftenvelope.client._portal import Portal
from liftenvelope.client._reading import merged, subscription
from liftenvelope.client.binding import Blocking, blocking_text

ROOT = Path(__file__).resolve().parents[3]
DUNDERS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
PAIRS: list[tuple[type, type]] = [
    (checkpointer.Checkpointer, module.BlockingCheckpointer),
    (subscription.Subscription, module.BlockingSubscription),
    (merged.MergedSubscription, module.BlockingMergedSubscription),
    (activity.ActivityStream, module.BlockingActivityStream),
    (consumer.Consumer, module.BlockingConsumer),
    (client.Client, module.BlockingClient),
]
EACH = pytest.mark.parametrize(("one", "twin"), PAIRS, ids=[one.__name__ for one, _ in PAIRS])


def public(kind: type) -> dict[str, Any]:
    """Methods and properties by name, without Client.open: a blocking client is open when it is made."""
    names = [name for name in dir(kind) if not name.startswith("_") or name in DUNDERS]
    return {
        name: inspect.getattr_static(kind, name) for name in names if (kind, name) != (client.Client, "open")
    }


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


@EACH
def test_same_names_parameters_and_defaults(one: type, twin: type) -> None:
    members = public(one)
    assert members
    for member, of_one in members.items():
        of_twin = inspect.getattr_static(twin, DUNDERS.get(member, member))
        assert isinstance(of_twin, property) == isinstance(of_one, property), member
        if not isinstance(of_one, property):
            assert parameters(of_twin) == parameters(of_one), member
            assert not inspect.iscoroutinefunction(of_twin)
            assert not inspect.isasyncgenfunction(of_twin)
            assert of_twin.__name__ == DUNDERS.get(member, member)


@EACH
def test_blocking_client_has_no_names_of_its_own(one: type, twin: type) -> None:
    known = {DUNDERS.get(member, member) for member in public(one)} | {"closed"}
    extra = {"publish_acks"} if twin is module.BlockingClient else set()
    assert {member for member in dir(twin) if not member.startswith("_")} <= known | extra


@EACH
def test_everything_is_documented(one: type, twin: type) -> None:
    assert twin.__doc__
    for member, of_one in public(one).items():
        if of_one.__doc__ and not member.startswith("_"):
            assert inspect.getattr_static(twin, member).__doc__, member


@EACH
def test_docstrings_speak_of_no_event_loop_syntax(one: type, twin: type) -> None:
    docs = {name: getattr(member, "__doc__", None) for name, member in public(twin).items()}
    for name, doc in {**docs, "the class": twin.__doc__}.items():
        assert not re.search(r"\b(async|await|awaited|asyncio)\b|one task", doc or ""), name


@EACH
def test_results_are_annotated_with_blocking_classes(one: type, twin: type) -> None:
    for name, member in public(twin).items():
        function: Any = member.fget if isinstance(member, property) else member
        returns = str(inspect.signature(function).return_annotation)
        assert not re.search(r"\bAsync|asyncio|\b(Subscription|Consumer|Checkpointer)\b", returns), name


def test_connect() -> None:
    one, twin = liftenvelope.connect, liftenvelope.connect_blocking
    assert parameters(twin) == parameters(one)
    assert inspect.signature(twin).return_annotation == "BlockingClient"
    assert liftenvelope.BlockingClient.__name__ == "BlockingClient"
    assert twin.__doc__ is not None
    assert not re.search(r"\b(async|await|asyncio)\b", twin.__doc__)
    for part in ("Connect to a Liftbridge cluster", "addresses: ", "on_event: ", "The client, connected"):
        assert part in twin.__doc__


def test_blocking_client_imports_without_docstrings() -> None:
    # -OO leaves the docstrings out, from which those of the blocking client are made.
    code = "from liftenvelope.client.blocking import connect_blocking; print(connect_blocking.__doc__)"
    program = [sys.executable, "-OO", "-c", code]
    assert subprocess.run(program, check=True, capture_output=True, text=True).stdout == "None\n"


def test_the_stub_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_blocking", ROOT / "protos/generate_blocking.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    text = generator.tidy(generator.Stub().text())
    assert generator.TARGET.read_text("utf-8") == text, "run protos/generate_blocking.py"


def test_examples_in_docstrings() -> None:
    text = """Do it; ``async with`` opens it, see :meth:`Client.publish`.

    Example:
        >>> import asyncio, liftenvelope
        >>> async def main(addresses):
        ...     async with liftenvelope.connect(addresses) as client:
        ...         count = (await client.fetch_metadata()).partition_count("orders")
        ...         return [message async for message in client.subscribe("orders")]
        >>> asyncio.run(main(cluster.addresses))

    Example::

        >>> import asyncio
        ack = await publish()
    """
    assert (
        blocking_text(text)
        == """Do it; ``with`` opens it, see :meth:`BlockingClient.publish`.

    Example:
        >>> import liftenvelope
        >>> def main(addresses):
        ...     with liftenvelope.connect_blocking(addresses) as client:
        ...         count = client.fetch_metadata().partition_count("orders")
        ...         return [message for message in client.subscribe("orders")]
        >>> main(cluster.addresses)

    Example::

        ack = publish()
    """
    )
    assert blocking_text(None) is None


KeyT = TypeVar("KeyT")
ItemT = TypeVar("ItemT")


class Keyed(Generic[KeyT, ItemT]):
    """Base with type variables."""

    def pair(self, key: KeyT) -> tuple[KeyT, list[ItemT]]:
        return key, []


class Kinds(Keyed[tuple[str, int], "Subkind"]):
    """One method of each kind."""

    def __init__(self) -> None:
        self.items = iter(range(3))

    @property
    def number(self) -> int:
        """Number that is read in the loop."""
        asyncio.get_running_loop()
        return 7

    async def waits(self, one: int, *more: int, **named: int) -> list[Any]:
        await asyncio.sleep(0)
        return [one, more, named]

    def runs(self) -> bool:
        return asyncio.get_running_loop().is_running()

    async def itself(self) -> Kinds:
        return self

    async def other(self) -> Subkind:
        return Subkind()

    def future(self) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(5)
        return future

    async def late_future(self) -> asyncio.Future[int]:
        return self.future()

    async def lists(self) -> AsyncIterator[int]:
        yield 1
        yield 2

    def skipped(self) -> None: ...

    async def by_hand(self) -> int:
        return 1

    async def close(self) -> None: ...

    def __aiter__(self) -> Kinds:
        return self

    async def __anext__(self) -> int:
        for item in self.items:
            return item
        raise StopAsyncIteration


class Subkind(Kinds):
    pass


class BlockingKinds(Blocking, of=Kinds, without=("skipped",)):
    def by_hand(self) -> int:
        return 2


class BlockingSubkind(Blocking, of=Subkind):
    pass


@pytest.fixture
def kinds() -> Iterator[Any]:
    portal = Portal()
    try:
        yield BlockingKinds(portal, Kinds())
    finally:
        portal.close()


class TestKinds:
    def test_property_and_function_run_in_the_loop(self, kinds: Any) -> None:
        assert (kinds.number, kinds.runs()) == (7, True)
        assert BlockingKinds.number.__doc__ == "Number that is read in the loop."  # type: ignore[attr-defined]

    def test_coroutine_gets_the_arguments(self, kinds: Any) -> None:
        assert kinds.waits(1, 2, 3, four=4) == [1, (2, 3), {"four": 4}]
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            kinds.waits()

    def test_results_are_blocking_objects(self, kinds: Any) -> None:
        assert kinds.itself() is kinds
        assert type(kinds.other()) is BlockingSubkind

    def test_futures(self, kinds: Any) -> None:
        for future in (kinds.future(), kinds.late_future()):
            assert isinstance(future, concurrent.futures.Future)
            assert future.result(60) == 5

    def test_iterators(self, kinds: Any) -> None:
        assert list(kinds.lists()) == [1, 2]
        assert iter(kinds) is kinds
        assert list(kinds) == [0, 1, 2]

    def test_annotations_name_the_types_of_type_variables(self) -> None:
        signature = inspect.signature(BlockingKinds.pair)  # type: ignore[attr-defined]
        assert signature.return_annotation == "tuple[tuple[str, int], list[Subkind]]"
        assert signature.parameters["key"].annotation == "tuple[str, int]"

    def test_methods_by_hand_stay_and_others_are_left_out(self, kinds: Any) -> None:
        assert kinds.by_hand() == 2
        assert not hasattr(kinds, "skipped")

    def test_close_has_no_effect_after_the_portal(self, kinds: Any) -> None:
        kinds._portal.close()
        assert kinds.close() is None
