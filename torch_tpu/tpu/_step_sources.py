"""Iterators and queues that a training step takes values from.

What a step takes while it is traced would be a part of its program: the same batch at every call.
And it would be gone when the attempt fails, and the call runs eagerly. So it is refused before a
value is taken.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import queue
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from torch.utils.data.dataloader import _BaseDataLoaderIter

from torch_tpu.tpu._step_reach import Held, reached

_TAKING = ("get", "get_nowait", "send", "throw")


class Sources:
    """Those that exist when the step begins, and are found; active while it is traced.

    ``refuse`` is told what the step was about to take from, and raises an exception.
    """

    def __init__(
        self, roots: list[Any], refuse: Callable[[str], NoReturn], until: types.CodeType
    ) -> None:
        self._roots = roots
        self._refuse = refuse
        self._until = until
        self._thread = threading.get_ident()
        # Those of classes that are guarded, by identity.
        self._known: dict[int, str] = {}
        self._kinds: set[type] = set()
        self._stack = contextlib.ExitStack()
        #: What a value was taken from, where that could not be refused.
        self.taken: str | None = None

    def __enter__(self) -> Sources:
        with contextlib.ExitStack() as stack:
            for held in list(reached(*self._roots)):
                if not _is_source(held.value):
                    continue
                what = _words(held.value) + ("" if held.where is None else f" in {held.what}")
                if self._guard_class(held.value, what, stack):
                    continue
                stand_in = _StandIn(held.value, self._about_to_take, what)
                if held.put(stand_in):
                    stack.callback(_give_back, held, stand_in)
            self._guard(_BaseDataLoaderIter, "__next__", "a DataLoader", None, stack)
            self._guard(queue.Queue, "get", "a queue", None, stack)
            several = sys.modules.get("multiprocessing.queues")
            for name in ("Queue", "SimpleQueue") if several else ():
                self._guard(getattr(several, name), "get", "a queue", None, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._thread = 0  # what the step has kept in the place of an iterator works as that

    def argument(self, value: Any) -> Any:
        """What the step gets for an argument."""
        if not _is_source(value) or self._is_guarded(value):
            return value
        what = f"{_words(value)} among its arguments"
        return _StandIn(value, self._about_to_take, what)

    def _is_guarded(self, value: Any) -> bool:
        return id(value) in self._known or isinstance(value, _BaseDataLoaderIter)

    def _guard_class(self, value: Any, what: str, stack: contextlib.ExitStack) -> bool:
        """Guards an iterator by its class, which Python code has made; False if that is fixed."""
        if self._is_guarded(value):
            return True
        kind = type(value)
        if not hasattr(kind, "__next__"):
            return False
        if kind not in self._kinds:
            try:
                self._guard(kind, "__next__", what, self._known, stack)
            except TypeError:
                return False
            self._kinds.add(kind)
        self._known[id(value)] = what
        return True

    def _guard(
        self,
        kind: Any,
        name: str,
        what: str,
        only: dict[int, str] | None,
        stack: contextlib.ExitStack,
    ) -> None:
        original = getattr(kind, name)

        def guarded(source: Any, /, *args: Any, **kwargs: Any) -> Any:
            if only is None or id(source) in only:
                self._about_to_take(what if only is None else only[id(source)])
            return original(source, *args, **kwargs)

        own = name in vars(kind)
        setattr(kind, name, guarded)
        stack.callback(*((setattr, kind, name, original) if own else (delattr, kind, name)))

    def _about_to_take(self, what: str) -> None:
        if threading.get_ident() != self._thread:
            return
        if self._in_generator():
            # An exception would end the generator.
            self.taken = what
        else:
            self._refuse(what)

    def _in_generator(self) -> bool:
        frame: types.FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not self._until:
            if frame.f_code.co_flags & inspect.CO_GENERATOR:
                return True
            frame = frame.f_back
        return False


class _StandIn:
    """In the place of an iterator or queue that is written in C."""

    def __init__(self, source: Any, about_to_take: Callable[[str], None], what: str) -> None:
        self._source = source
        self._about_to_take = functools.partial(about_to_take, what)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._source)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._about_to_take()
        return next(self._source)

    def __getattr__(self, name: str) -> Any:
        if name in _TAKING:
            self._about_to_take()
        return getattr(self._source, name)


def _give_back(held: Held, stand_in: _StandIn) -> None:
    if held.now() is stand_in:
        held.put(held.value)


def _is_source(value: Any) -> bool:
    if type(value) is queue.SimpleQueue:
        return True
    return hasattr(type(value), "__next__") and not isinstance(value, io.IOBase)


def _words(value: Any) -> str:
    name = getattr(value, "__name__", None)
    kind = type(value).__name__
    return f"the {kind} {name!r}" if isinstance(name, str) else f"a {kind}"
