"""Writes liftenvelope/client/blocking from the async client: ``python protos/generate_blocking.py``.

With ``--check`` it only says what is out of date. For each class in TWINS the module
``liftenvelope/client/blocking/<its module>.py`` gets a class whose public methods have the same names,
parameters, defaults and docstrings, and run those of the async class in the loop of a portal. Nothing is
imported: only the source is read. What is written by hand stands in ``_base.py`` there.

A new part of the client: add its class to TWINS, and run this. What the generator does not know how to turn
into a blocking method ends it with the place in the source.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "liftenvelope" / "client"
TARGET = SOURCE / "blocking"

#: Async class -> (its module, its blocking twin). The order is that of the classes within a module.
TWINS = {
    "Streams": ("streams", "BlockingStreams"),
    "Cursors": ("cursors", "BlockingCursors"),
    "Checkpointer": ("checkpointer", "BlockingCheckpointer"),
    "MessageReader": ("message_reader", "BlockingMessageReader"),
    "Subscription": ("subscription", "BlockingSubscription"),
    "MergedSubscription": ("merged", "BlockingMergedSubscription"),
    "ActivityStream": ("activity", "BlockingActivityStream"),
    "Consumer": ("consumer", "BlockingConsumer"),
    "Publisher": ("publishing", "BlockingPublish"),
    "HealthChecks": ("health", "BlockingHealth"),
    "Client": ("client", "BlockingClient"),
}
#: Classes whose methods a client forwards to one of its parts. Their twins are the bases of BlockingClient.
PARTS = ("Publisher", "Streams", "Cursors", "HealthChecks")
#: Async classes whose twins in ``_base.py`` are written by hand; "" for those without a base.
BY_HAND = {"ConsumerPartitions": "Blocking", "": "Blocking"}
#: Classes with a part of their twin in ``_base.py``: its name, and what it has, which is not generated.
PARTLY_BY_HAND: dict[str, tuple[str, set[str]]] = {
    "Client": ("BlockingCore", {"open", "close", "__aenter__", "__aexit__"}),
    "Cursors": ("", {"read", "write", "advance"}),
    "MessageReader": ("BlockingReader", {"__aiter__", "__anext__"}),
}
#: Properties that never change, or by one step: any thread can look at them.
CONSTANT = {"stream", "partition", "finished", "group", "consumer_id"}
#: Methods that take messages from the caller's iterable, and return what is awaited or iterated over. The
#: twin waits, and a second method iterates: the parameter, its type, what is awaited, an item, second method.
FED = {
    "Publisher.publish_many": (
        "messages",
        "Iterable[Item]",
        "PublishSummary",
        "tuple[int, Ack]",
        "publish_acks",
    ),
}
#: Where those of their types are from that the methods' own module does not import.
FED_HOMES = {
    "Item": "liftenvelope.client.publish_many",
    "PublishSummary": "liftenvelope.client.publish_summary",
}
#: Docstrings that need other words: where -> (what it says, what it shall say).
REWORDED: dict[str, tuple[tuple[str, str], ...]] = {
    "Client": (("; it belongs to one event loop.", ".\n\n    Any number of threads may use it."),),
    "Client.consumer": (
        (
            "A function or a coroutine function.",
            "It runs in the client's own thread, and can use what does not wait: seek, pause, resume, "
            "position.",
        ),
    ),
    "Consumer": (("For one task at a time.", "For one thread at a time."),),
    "ActivityStream": (("For one task at a time.", "For one thread at a time."),),
    "Publisher.publish_async": (
        (
            "acks = asyncio.gather(*futures)",
            "acks = [future.result() for future in futures]",
        ),
    ),
    "Publisher.publish_many": (
        (
            "Publish what an iterable gives, many in flight, in bounded memory.",
            "Publish what an iterable gives, many in flight, in bounded memory; wait for the acks.",
        ),
        (
            "An iterable or async iterable, which may be endless,",
            "An iterable, which is asked in the thread of the caller,",
        ),
        (
            "; in a loop over the acks, how many may be without one or not fetched. Default",
            ". Default",
        ),
        (
            "What to await for the :class:`PublishSummary`, or to iterate over for ``(index, ack)`` in the "
            "order of the input. An error",
            "What became of them. :meth:`publish_acks` hands out the acks. An error",
        ),
        (
            'for index, ack in client.publish_many("orders", [(b"key", b"value")]): print(index, ack.offset)',
            "",
        ),
    ),
    "Checkpointer": (("Made by :meth:`BlockingClient.checkpointer`; used", "Used"),),
    "MessageReader": (("For one task at a time.", "Threads may share an iteration, and no more."),),
    "Subscription": (("For one task at a time.", "Threads may share an iteration, and no more."),),
    "connect": (
        (
            "Make a client of a Liftbridge cluster; ``with`` or ``await`` connects it.",
            "Connect to a Liftbridge cluster. Close the client in the end: ``with`` does it.",
        ),
        (
            "Called with every :data:`ClientEvent`.",
            "Called with every :data:`ClientEvent`, in the client's own thread: it can't call the client.",
        ),
        ("The client, not connected yet.", "The client, connected."),
        (
            "UsageError: An argument makes no sense; it is named.",
            "UsageError: An argument makes no sense; it is named.\n"
            "        TransportError: No broker could be reached.\n"
            "        CallTimeoutError: None answered in time.",
        ),
    ),
}

_BLOCKING_DUNDERS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
_WIDTH = 110

Function = ast.FunctionDef | ast.AsyncFunctionDef


class UnknownFormError(Exception):
    """A piece of source that there is no blocking form for."""


@dataclass
class Source:
    """One async module: its tree, and where the names that it uses come from."""

    module: str
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, module: str) -> Source:
        """Parse the module."""
        source = cls(module, ast.parse((SOURCE / f"{module}.py").read_text("utf-8")))
        source._learn(source.tree.body)
        return source

    def _learn(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.names[alias.asname or alias.name] = f"from {node.module} import {alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.split(".")[0]
                    self.names[name] = f"import {alias.name}" + (f" as {name}" if alias.asname else "")
            elif isinstance(node, ast.If):
                self._learn(node.body)
            else:
                for name in _defined(node):
                    self.names[name] = f"from liftenvelope.client.{self.module} import {name}"

    def class_(self, name: str) -> ast.ClassDef:
        """Find a class."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
        raise UnknownFormError(f"liftenvelope/client/{self.module}.py has no class {name}")

    def function(self, name: str) -> ast.FunctionDef:
        """Find a function."""
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        raise UnknownFormError(f"liftenvelope/client/{self.module}.py has no function {name}")


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def named(*nodes: ast.AST | None) -> set[str]:
    """Return the plain names that occur in expressions."""
    return {
        found.id
        for node in nodes
        if node is not None
        for found in ast.walk(node)
        if isinstance(found, ast.Name)
    }


# Docstrings


def adapt(text: str, about: str) -> str:
    """Return a docstring as the blocking twin has it."""
    text = "\n".join(_adapt_lines(text.split("\n")))
    for name, (_, twin) in TWINS.items():
        if name not in PARTS:
            text = re.sub(rf"(:(?:class|meth|attr):`){name}\b", rf"\g<1>{twin}", text)
    text = re.sub(r":func:`connect`", ":func:`connect_blocking`", text)
    for old, new in REWORDED.get(about, ()):
        # Wherever its lines are broken.
        pattern = r"\s+".join(map(re.escape, old.split()))
        text, count = re.subn(pattern, lambda _, new=new: new, text)  # type: ignore[misc]
        if not count:
            raise UnknownFormError(f"REWORDED[{about!r}]: the docstring does not say {old!r} any more")
    if found := re.search(r"\basync\b|\bawait(s|ed)?\b|\basyncio\.|event loop", text):
        raise UnknownFormError(f"{about}: its docstring says {found[0]!r}: give other words in REWORDED")
    first, *lines = re.sub(r"\n\s*\n( *)$", r"\n\1", text).split("\n")
    if len(first) > _WIDTH - 11:
        raise UnknownFormError(f"{about}: {first!r} does not fit on a line: give other words in REWORDED")
    return "\n".join([first, *_rewrap(lines)])


def _rewrap(lines: list[str]) -> Iterator[str]:
    """Break lines that have become too long; what is cut off begins the next line of the paragraph."""
    rest, base = "", min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        indent = line[: len(line) - len(line.lstrip())]
        text, rest = indent + rest + line.lstrip(), ""
        while len(text) > _WIDTH:
            cut = text.rindex(" ", 0, _WIDTH)
            text, rest = text[:cut], text[cut + 1 :] + " "
            is_item = len(indent) == base + 4 and re.match(r"\s*\w+: ", text)
            deeper = indent + ("    " if is_item else "")
            if after.strip() and after.startswith(deeper) and not after[len(deeper) :].startswith(" "):
                break
            yield text
            text, rest = deeper + rest.rstrip(), ""
        yield text


def _adapt_lines(lines: list[str]) -> Iterator[str]:
    block: int | None = None  # the indentation of what introduced a literal block
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if line.strip() != ">>> import asyncio":
            yield _adapt_line(line, is_code=block is not None)
        if line.endswith("::"):
            block = indent


def _adapt_line(line: str, *, is_code: bool) -> str:
    line = re.sub(r"\basync (with|for|def)\b", r"\1", line)
    if is_code or re.match(r"\s*(>>>|\.\.\.) ", line):
        line = re.sub(r"\bimport asyncio, ", "import ", line)
        line = re.sub(r"\basyncio\.run\((.*)\)", r"\1", line)
        line = re.sub(r"\bliftenvelope\.connect\(", "liftenvelope.connect_blocking(", line)
        line = re.sub(r"\(await ([\w.]+\([^()]*\))\)", r"\1", line)
        line = re.sub(r"\bawait ", "", line)
    return line


# Methods


@dataclass
class Writer:
    """Writes the twin of one module, and collects what the module must import."""

    source: Source
    at_runtime: set[str] = field(default_factory=set)
    for_types: set[str] = field(default_factory=set)
    #: Names of the methods with overloads, of the class that is being written.
    _overloaded: set[str] = field(default_factory=set)

    def module(self, classes: list[str], functions: list[str]) -> str:
        """Return the text of the module, not formatted yet."""
        parts = [self.class_(name) for name in classes] + [self.function(name) for name in functions]
        exported = sorted([TWINS[name][1] for name in classes] + [f"{name}_blocking" for name in functions])
        return "\n\n".join(
            [
                f'"""Made of client/{self.source.module}.py by protos/generate_blocking.py. Don\'t edit."""',
                "from __future__ import annotations",
                "\n".join(["from typing import TYPE_CHECKING", *sorted(self.at_runtime)]),
                "if TYPE_CHECKING:\n"
                + "\n".join(f"    {line}" for line in sorted(self.for_types - self.at_runtime)),
                f"__all__ = {exported!r}",
                *parts,
            ]
        )

    def class_(self, name: str) -> str:
        """Return the twin of a class."""
        node, twin = self.source.class_(name), TWINS[name][1]
        part, skipped = PARTLY_BY_HAND.get(name, ("", set()))
        bases = [self._base(base) for base in node.bases]
        if part or not bases:
            bases = [self._part(part or BY_HAND[""])]
        if name == "Client":
            bases = [*map(self._twin, PARTS), *bases]
        doc = adapt(ast.get_docstring(node, clean=False) or "", name)
        owner = "Client" if name in PARTS else name
        self.for_types.add(f"from liftenvelope.client.{TWINS[owner][0]} import {owner}")
        self._overloaded = {
            member.name
            for member in node.body
            if isinstance(member, Function) and "overload" in map(ast.unparse, member.decorator_list)
        }
        members = [
            self.method(member, name)
            for member in node.body
            if isinstance(member, Function) and _is_public(member.name) and member.name not in skipped
        ]
        head = f'class {twin}({", ".join(bases)}):\n    """{doc}"""\n\n    _async: {owner}\n'
        return head + "\n" + "\n".join(members)

    def _base(self, node: ast.expr) -> str:
        name = ast.unparse(node)
        return self._part(BY_HAND[name]) if name in BY_HAND else self._twin(name)

    def _part(self, twin: str) -> str:
        self.at_runtime.add(f"from liftenvelope.client.blocking._base import {twin}")
        return twin

    def _twin(self, name: str) -> str:
        if name not in TWINS:
            raise UnknownFormError(f"{self.source.module}.py: {name} is not in TWINS")
        module, twin = TWINS[name]
        if module != self.source.module:
            self.at_runtime.add(f"from liftenvelope.client.blocking.{module} import {twin}")
        return twin

    def function(self, name: str) -> str:
        """Return the twin of a function that makes the client."""
        node = self.source.function(name)
        self._import_names(node)
        self.at_runtime.add(self.source.names[name])
        self.at_runtime.add("from liftenvelope.client.blocking._base import open_client")
        doc = adapt(ast.get_docstring(node, clean=False) or "", name)
        twin = self._twin("Client")
        return (
            f"def {name}_blocking({ast.unparse(node.args)}) -> {twin}:\n"
            f'    """{doc}"""\n'
            f"    return open_client({twin}, lambda: {name}({_passed(node, skip_self=False)}))\n"
        )

    def method(self, node: Function, owner: str) -> str:
        """Return the twin of a method."""
        about = f"{owner}.{node.name}"
        if about in FED:
            return self._fed(node, about)
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        if decorators - {"property", "overload"}:
            raise UnknownFormError(f"{about}: decorators {decorators}")
        self._import_names(node)
        returns, body = self._body(node, about)
        doc = ast.get_docstring(node, clean=False)
        if "overload" in decorators:
            self.at_runtime.add("from typing import overload")
            lines = ["..."]
        elif "property" in decorators:
            found = f"self._async.{node.name}"
            lines = [f"return {found if node.name in CONSTANT else f'self._portal.look(lambda: {found})'}"]
        else:
            lines = body
            if node.name in self._overloaded:
                self.for_types.update(self.source.names[name] for name in named(node.returns) & TWINS.keys())
                # The implementation takes more than any of the overloads that its twin shows.
                self.for_types.add("from collections.abc import Callable")
                assert node.returns is not None
                kind = f"Callable[..., {ast.unparse(node.returns)}]"
                lines = [f"method: {kind} = self._async.{node.name}", *body]
        text = [f"    @{decorator}" for decorator in sorted(decorators)]
        text.append(
            f"    def {_BLOCKING_DUNDERS.get(node.name, node.name)}({ast.unparse(node.args)}) -> {returns}:"
        )
        text += [f'        """{adapt(doc, about)}"""'] if doc else []
        return "\n".join([*text, *(f"        {line}" for line in lines)]) + "\n"

    def _fed(self, node: Function, about: str) -> str:
        """Return the twins of a method in FED."""
        parameter, kind, result, item, iterating = FED[about]
        node = ast.parse(textwrap.dedent(ast.unparse(node))).body[0]  # type: ignore[assignment]
        for argument in node.args.args:
            if argument.arg == parameter:
                argument.annotation = ast.parse(kind, mode="eval").body
        self.for_types.add("from collections.abc import Iterable, Iterator")
        self.source.names.setdefault("Iterable", "from collections.abc import Iterable")
        every = ast.parse(f"{kind}, {result}, {item}", mode="eval")
        for name in named(every):
            if name in FED_HOMES:
                self.source.names.setdefault(name, f"from {FED_HOMES[name]} import {name}")
            self._import_type(name)
        node.returns = ast.parse(result, mode="eval").body
        self._import_names(node)
        call = f"self._async.{node.name}({_passed(node)})"
        make = re.sub(rf"\b{parameter}\b", "feed", call)
        doc = adapt(ast.get_docstring(node, clean=False) or "", about)
        arguments = ast.unparse(node.args)
        return (
            f"    def {node.name}({arguments}) -> {result}:\n"
            f'        """{doc}"""\n'
            f"        return self._portal.feed({parameter}, lambda feed: {make})\n\n"
            f"    def {iterating}({arguments}) -> Iterator[{item}]:\n"
            f'        """As :meth:`{node.name}`, but hand out the acks, in the order of the input.\n\n'
            f"        A slow loop slows the sending. Leaving it early leaves the rest unsent.\n\n"
            f"        Args and Raises: as :meth:`{node.name}` has them.\n\n"
            f"        Yields:\n            The index of a message, and its ack.\n"
            f'        """\n'
            f"        return self._portal.feed_and_iterate({parameter}, lambda feed: {make})\n"
        )

    def _body(self, node: Function, about: str) -> tuple[str, list[str]]:
        """Return the annotation of the result, and the lines that make it."""
        if node.returns is None:
            raise UnknownFormError(f"{about}: it says not what it returns")
        if node.name == "__aiter__":
            return ast.unparse(node.returns), ["return self"]
        if node.name == "__anext__":
            return ast.unparse(node.returns), ["return self._portal.next(self._async)"]
        return self._result(node, node.returns, about)

    def _result(self, node: Function, annotation: ast.expr, about: str) -> tuple[str, list[str]]:
        is_async = isinstance(node, ast.AsyncFunctionDef)
        method = "method" if node.name in self._overloaded else f"self._async.{node.name}"
        call = f"{method}({_passed(node)})"
        returns, outer = ast.unparse(annotation), _outer(annotation)
        if outer in ("AsyncIterator", "AsyncGenerator"):
            self.for_types.add("from collections.abc import Iterator")
            item = ast.unparse(_arguments(annotation)[0])
            return f"Iterator[{item}]", [f"return self._portal.iterate({call})"]
        visit = f"self._portal.call({call})" if is_async else f"self._portal.run(lambda: {call})"
        if node.name in ("close", "__aexit__"):
            visit = f"self._portal.end({call})"
        if outer == "Self":
            return returns, [visit, "return self"]
        if named(annotation) and named(annotation) <= TWINS.keys():
            return self._wrapped(sorted(named(annotation), key=list(TWINS).index), visit)
        if outer == "Future":
            self.at_runtime.add("import concurrent.futures")
            item = ast.unparse(_arguments(annotation)[0])
            return f"concurrent.futures.Future[{item}]", [f"return self._portal.future(lambda: {call})"]
        if named(annotation) & {*TWINS, "Awaitable", "Coroutine", "Future"}:
            raise UnknownFormError(f"{about}: returns {returns}")
        return returns, [visit if returns == "None" else f"return {visit}"]

    def _wrapped(self, kinds: list[str], visit: str) -> tuple[str, list[str]]:
        """As _body, for a method that returns one of those classes."""
        twins = [self._twin(kind) for kind in kinds]
        *others, last = twins
        if not others:
            return last, [f"return {last}(self._portal, {visit})"]
        lines = [f"found = {visit}"]
        for kind, twin in zip(kinds, others, strict=False):
            self.at_runtime.add(self.source.names[kind])
            lines += [f"if isinstance(found, {kind}):", f"    return {twin}(self._portal, found)"]
        return " | ".join(twins), [*lines, f"return {last}(self._portal, found)"]

    def _import_names(self, node: Function) -> None:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
        annotations = [argument.annotation for argument in every]
        for annotation in annotations:
            if named(annotation) & TWINS.keys():
                raise UnknownFormError(f"{node.name}: takes {ast.unparse(annotation or node)}")
        for name in named(*annotations, node.returns):
            self._import_type(name)
        for name in named(*arguments.defaults, *arguments.kw_defaults):
            if not hasattr(builtins, name):
                self.at_runtime.add(self.source.names[name])

    def _import_type(self, name: str) -> None:
        if not hasattr(builtins, name):
            self.for_types.add(self.source.names[name])


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in _BLOCKING_DUNDERS


def _outer(annotation: ast.expr) -> str:
    """The name of a type without its arguments and its module."""
    if isinstance(annotation, ast.Subscript):
        return _outer(annotation.value)
    return annotation.attr if isinstance(annotation, ast.Attribute) else getattr(annotation, "id", "")


def _arguments(annotation: ast.expr) -> list[ast.expr]:
    assert isinstance(annotation, ast.Subscript)
    inside = annotation.slice
    return inside.elts if isinstance(inside, ast.Tuple) else [inside]


def _passed(node: Function, *, skip_self: bool = True) -> str:
    """The arguments of a call that passes on all that the function takes."""
    arguments = node.args
    plain = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    passed = plain[1:] if skip_self else plain
    if arguments.vararg is not None:
        passed.append(f"*{arguments.vararg.arg}")
    passed += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        passed.append(f"**{arguments.kwarg.arg}")
    return ", ".join(passed)


# Files


def tidy(name: str, text: str) -> str:
    """Return the text as ruff formats it, its imports sorted, without those that nothing needs."""
    path = str(TARGET / name)
    for command in (("check", "--fix-only", "--quiet"), ("format", "--quiet")):
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"],
            input=text,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        if done.returncode != 0:
            raise UnknownFormError(f"{name}: ruff: {done.stderr}\n{text}")
        text = done.stdout
    return text


def generate() -> dict[str, str]:
    """Return the text of every generated file, by name."""
    modules: dict[str, list[str]] = {}
    for name, (module, _) in TWINS.items():
        modules.setdefault(module, []).append(name)
    files = {}
    for module, classes in modules.items():
        functions = ["connect"] if module == "client" else []
        files[f"{module}.py"] = tidy(f"{module}.py", Writer(Source.read(module)).module(classes, functions))
    return files


def main() -> int:
    """Write the files, or with ``--check`` only say which are out of date; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Generate liftenvelope/client/blocking from the async client."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is out of date")
    check = parser.parse_args().check
    files = generate()
    there = {path.name for path in TARGET.glob("*.py")} - {"__init__.py", "_base.py"}
    stale = [
        name
        for name, text in files.items()
        if name not in there or (TARGET / name).read_text("utf-8") != text
    ]
    left_over = sorted(there - files.keys())
    if not check:
        for name in stale:
            (TARGET / name).write_text(files[name], "utf-8")
        for name in left_over:
            (TARGET / name).unlink()
    for name in stale:
        print(f"{name}: {'out of date' if check else 'written'}", file=sys.stderr)
    for name in left_over:
        print(f"{name}: {'nothing generates it' if check else 'removed'}", file=sys.stderr)
    return 1 if check and (stale or left_over) else 0


if __name__ == "__main__":
    sys.exit(main())
