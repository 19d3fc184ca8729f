"""Calls a function right after a module has been imported, so that nothing heavy is imported for our sake."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from resihp_attach.guard import guard

Patch = Callable[[ModuleType], None]


class _Patching(importlib.abc.Loader):
    """Another loader, and the patches after it."""

    def __init__(self, loader: importlib.abc.Loader, patches: Sequence[Patch]) -> None:
        self._loader, self._patches = loader, patches

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for patch in self._patches:
            guard(f"hook {patch.__module__}.{patch.__name__}")(patch)(module)


class AfterImport(importlib.abc.MetaPathFinder):
    """First of `sys.meta_path`: finds nothing itself, only wraps what the others find."""

    def __init__(self) -> None:
        self._patches: dict[str, list[Patch]] = {}
        self._busy: set[str] = set()

    def call(self, name: str, patch: Patch) -> None:
        """`patch(module)` after the import of `name`, or now if that is over."""
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            guard(f"hook {patch.__module__}.{patch.__name__}")(patch)(module)
        else:
            self._patches.setdefault(name, []).append(patch)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._patches or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patching(spec.loader, self._patches.pop(fullname))
        return spec
