"""`Observation`: a recorder with the functions of torch and JAX that report to it, from start to close.

The frameworks are not imported here: a framework that the program imports later reports from then on.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Container, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.recorder import Recorder

_INSTALLERS = {
    "torch": "pinchpoint.backends.torch.recording.install",
    "jax": "pinchpoint.backends.jax.recording",
}


class Observation:
    """`start()` replaces functions, `close()` puts them back. A forked process reports nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._patches = Patches()
        self._finder = _AfterImport(self._patches, self._install, recorder.after_import)
        self._is_open = False

    def start(self) -> None:
        self._is_open = True
        for name in _INSTALLERS:
            if name in sys.modules:
                self._install(name)
        sys.meta_path.insert(0, self._finder)  # pyright: ignore[reportArgumentType]
        # It stays registered for as long as the process lives, so it must not keep the recorder alive.
        reference: weakref.ref[Observation] = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _close(reference))

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)  # pyright: ignore[reportArgumentType]
        self.recorder.is_closed = True
        self._patches.undo()
        for act in self.recorder.on_close:
            act()
        self.recorder.on_close.clear()

    def _install(self, name: str) -> None:
        if not self._is_open:
            return
        if name in _INSTALLERS:
            import_module(_INSTALLERS[name]).install(self.recorder, self._patches)
        else:
            self.recorder.after_import.pop(name)()


def _close(reference: weakref.ref[Observation]) -> None:
    observation = reference()
    if observation is not None:
        observation.close()


class _AfterImport:
    """A finder that calls `act(name)` after a framework, or another of the `others`, was imported.

    The import happens without the patches.
    """

    def __init__(self, patches: Patches, act: Callable[[str], None], others: Container[str]) -> None:
        self._patches, self._act, self._others = patches, act, others

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _INSTALLERS and name not in self._others:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        load: Any = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with self._patches.suspended():
                load(module)
            self._act(name)

        spec.loader.exec_module = exec_module  # pyright: ignore[reportAttributeAccessIssue]
        return spec
