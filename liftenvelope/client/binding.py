"""Blocking classes, bound at run time: their methods run those of an async object in a portal's loop.

``class BlockingX(Blocking, of=X)`` gets every public method and property of X that it does not define, with
the same name, parameters and docstring. The kind of a method decides how it runs: see ``_RUN``.

Type checkers can't see methods that are made at run time. ``blocking.pyi`` declares them for the checkers,
and ``protos/generate_blocking.py`` writes that file from the classes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, ForwardRef, Self, get_args, get_origin

from liftenvelope.client._portal import Portal
from liftenvelope.errors import LiftEnvelopeError, TransportError

if TYPE_CHECKING:
    from liftenvelope.client._reading.message_reader import MessageReader
    from liftenvelope.client.client import Client
    from liftenvelope.client.options import Options
    from liftenvelope.envelope import Message

__all__ = ["Blocking", "BlockingReader", "blocking_text", "open_portal", "options_of", "with_signature_of"]

#: Async classes that have a blocking class, which is named ``Blocking`` and the name of the async class.
_NAMES: Final = r"(Client|Subscription|MergedSubscription|ActivityStream|Consumer|Checkpointer)\b"
_DUNDERS: Final = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
#: Properties that never change, or change once: every thread may read them without a visit to the loop.
_CONSTANT: Final = frozenset({"stream", "partition", "finished", "group", "consumer_id"})
#: Code of an async docstring -> code of the blocking one.
_CODE: Final = (
    (r"^ *>>> import asyncio\n", ""),
    (r"\bimport asyncio, ", "import "),
    (r"\basyncio\.run\((.*)\)$", r"\1"),
    (r"\basync (with|for|def)\b", r"\1"),
    (r"\(await ([\w.]+\([^()]*\))\)", r"\1"),
    (r"\bawait ", ""),
    (r"\bliftenvelope\.connect\(", "liftenvelope.connect_blocking("),
    (rf"(?<=:`){_NAMES}", r"Blocking\1"),
)
#: Annotation of an async result -> annotation of the blocking one.
_RETURNS: Final = (
    (r"^AsyncIterator\b", "Iterator"),
    (r"^asyncio\.Future\b", "concurrent.futures.Future"),
    (rf"\b{_NAMES}", r"Blocking\1"),
)
#: Async class -> blocking class.
_TWINS: Final[dict[type, type[Blocking]]] = {}


class Blocking:
    """Base of the blocking classes: an async object, and the portal to the event loop that it lives in."""

    _async: Any
    _async_type: type

    def __init__(self, portal: Portal, target: object) -> None:
        self._portal = portal
        self._async = target

    def __init_subclass__(cls, *, of: type | None = None, without: Collection[str] = ()) -> None:
        """Bind the public methods and properties of the class ``of``, except those in ``without``."""
        super().__init_subclass__()
        if of is None:
            return
        _TWINS[of], cls._async_type = cls, of
        types = _type_arguments(of)
        for name in _public(of):
            own = _DUNDERS.get(name, name)
            if name in without or any(own in vars(kind) for kind in cls.__mro__[:-1]):
                continue  # written by hand
            member = inspect.getattr_static(of, name)
            setattr(cls, own, _bound(name, member, f"{cls.__qualname__}.{own}", types))

    def _take_back(self, item: object) -> None:
        """Make the async object keep an item: the caller was interrupted before it got the item."""
        with contextlib.suppress(TransportError):  # the client was closed meanwhile
            self._portal.run(lambda: self._async._take_back(item))

    def _drop(self) -> None:
        """Close the async object, whose caller was interrupted when it was open and not used yet."""
        with contextlib.suppress(LiftEnvelopeError):  # the interrupt says more
            self._portal.end(self._async.close())

    def _wrapped(self, found: object) -> object:
        """Return what a method returns: the blocking object for an async one, or else the value itself."""
        if found is self._async:
            return self
        twin = _TWINS.get(type(found))
        return found if twin is None else twin(self._portal, found)


class BlockingReader(Blocking):
    """Base of the blocking readers of messages.

    The async reader holds a list of messages at a time. Most messages are taken from that list in the
    caller's thread; the loop is visited once per list.

    The loop reads the socket, so that keepalive pings go on while the caller works. A socket read in the
    caller's thread saves a third of the CPU time, but the server limits the rate: 1.0 to 1.2 times the
    messages/s (100 bytes, 2 cores, Liftbridge and gateway, without recovery).
    """

    _async: MessageReader

    def __init__(self, portal: Portal, target: MessageReader) -> None:
        super().__init__(portal, target)
        self._filling = threading.Lock()

    @property
    def closed(self) -> bool:
        """True once the reader was closed, or has ended."""
        return self._async.closed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        try:
            # Only calls that are made here let the loop replace or clear the list, and pop() is one step.
            return self._async._buffer.pop()
        except IndexError:
            return self._next_of_more()

    def _next_of_more(self) -> Message:
        """Return a message of the next list, which one thread fetches for all.

        The loop only fills the buffer. A message that the loop popped would be lost if this thread was
        interrupted before it got the message.
        """
        try:
            with self._filling:
                while True:
                    with contextlib.suppress(IndexError):
                        return self._async._buffer.pop()
                    if self._portal.is_closed or not self._portal.call(self._async._refill()):
                        raise StopIteration
        except TransportError as exc:
            if self._portal.is_closed and exc is not self._async._failure:
                raise StopIteration from None  # the client was closed, and the reader with it
            raise


def _public(kind: type) -> Iterator[str]:
    """Yield the names of public methods and properties, those of the bases first."""
    names = {name: None for base in reversed(kind.__mro__) for name in vars(base)}
    return (name for name in names if name in _DUNDERS or not name.startswith("_"))


def _type_arguments(kind: type) -> dict[str, str]:
    """Return the types that stand for the type variables of a class's generic bases, as annotations."""
    found: dict[str, str] = {}
    for base in getattr(kind, "__orig_bases__", ()):
        names = [variable.__name__ for variable in getattr(get_origin(base), "__parameters__", ())]
        found |= dict(zip(names, map(_as_annotation, get_args(base)), strict=False))
    return found


def _as_annotation(kind: Any) -> str:
    if isinstance(kind, ForwardRef):
        return kind.__forward_arg__
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else repr(kind)


def _bound(name: str, member: Any, qualified: str, types: Mapping[str, str]) -> object:
    """Return the blocking form of a member of an async class."""
    if isinstance(member, property):
        read = with_signature_of(member.fget, _getter(name), qualified, types)
        return property(read, doc=read.__doc__)
    return with_signature_of(member, _method(name, member), qualified, types)


def _getter(name: str) -> Callable[..., Any]:
    if name in _CONSTANT:
        return lambda self: getattr(self._async, name)
    return lambda self: self._portal.look(lambda: getattr(self._async, name))


def _method(name: str, method: Any) -> Callable[..., Any]:
    """Return a function that runs a method of ``self._async``."""
    if name == "__aiter__":
        return lambda self: self
    if name == "__anext__":
        return lambda self: self._portal.next(self._async, self._take_back)
    run = _RUN[_kind(name, method)]
    return lambda self, /, *args, **options: run(self, lambda: getattr(self._async, name)(*args, **options))


def _kind(name: str, method: Any) -> str:
    if name in ("close", "__aexit__"):
        return "end"
    if name == "next":
        return "next"
    if name in ("open", "__aenter__"):
        return "open"
    if str(inspect.signature(method).return_annotation).startswith("asyncio.Future["):
        return "future"
    if inspect.isasyncgenfunction(method):
        return "async generator"
    return "coroutine" if inspect.iscoroutinefunction(method) else "function"


#: Kind of method -> function of the blocking object and the async call, which runs the call.
_RUN: Final[dict[str, Callable[[Any, Callable[[], Any]], Any]]] = {
    # No effect after the portal has ended: everything open has ended with it.
    "end": lambda self, call: self._portal.end(call()),
    # Returns a concurrent.futures.Future.
    "future": lambda self, call: self._portal.future(call),
    # Returns an iterator, with one visit to the loop per item. Keeps items as "next" does.
    "async generator": lambda self, call: self._portal.iterate(call(), on_unused=self._take_back),
    # Waits for an item. If the caller is interrupted before it gets the item, a later read returns it.
    "next": lambda self, call: self._portal.call(call(), on_unused=self._take_back),
    # Waits until the object is open. If the caller is interrupted then, nobody else would close the object.
    "open": lambda self, call: self._wrapped(self._portal.call(call(), on_unused=lambda _: self._drop())),
    # Waits for the result.
    "coroutine": lambda self, call: self._wrapped(self._portal.call(call())),
    # Runs in the thread of the loop, like the code that shares its state.
    "function": lambda self, call: self._wrapped(self._portal.run(call)),
}


def with_signature_of(
    source: Any, function: Callable[..., Any], qualified: str, types: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """Give a function the parameters and the docstring of its async source, and return it.

    Args:
        source: Function of the async client.
        function: Function of the blocking client.
        qualified: Name of the function, with its class.
        types: Types for the type variables in annotations.
    """
    functools.update_wrapper(function, source)
    signature = inspect.signature(source)
    returns = blocking_annotation(_with_types(signature.return_annotation, types))
    parameters = [
        one.replace(annotation=_with_types(one.annotation, types)) for one in signature.parameters.values()
    ]
    found: Any = function
    found.__signature__ = signature.replace(parameters=parameters, return_annotation=returns)
    found.__annotations__ = {
        one.name: one.annotation for one in parameters if one.annotation is not inspect.Parameter.empty
    } | {"return": returns}
    found.__name__, found.__qualname__ = qualified.rsplit(".", maxsplit=1)[-1], qualified
    found.__doc__ = blocking_text(inspect.getdoc(source))
    return found


def _with_types(annotation: Any, types: Mapping[str, str]) -> Any:
    for variable, kind in types.items() if isinstance(annotation, str) else ():
        annotation = re.sub(rf"\b{variable}\b", kind, annotation)
    return annotation


def blocking_annotation(returns: str) -> str:
    """Return the annotation of a blocking method's result."""
    for pattern, name in _RETURNS:
        returns = re.sub(pattern, name, returns)
    return returns


def blocking_text(text: str | None) -> str | None:
    """Return a docstring with the code of the blocking client in place of the async one."""
    for pattern, code in _CODE if text else ():
        text = re.sub(pattern, code, text or "", flags=re.MULTILINE)
    return text


def open_portal(make: Callable[[], Client]) -> tuple[Portal, Client]:
    """Open the client that ``make`` returns in a new portal, and return both.

    Closing the portal closes the client.
    """
    portal = Portal()
    try:
        client = portal.run(make)
        portal.before_end(client.close)
        portal.call(client.open())
    except BaseException:
        portal.close()
        raise
    return portal, client


def options_of(client: Client | Blocking) -> Options:
    """Return the options that a client was made with, for code that opens its own connections."""
    found: Client = client._async if isinstance(client, Blocking) else client
    return found._context.options
