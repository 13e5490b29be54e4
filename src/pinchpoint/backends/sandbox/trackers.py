"""`Trackers`: switches experiment trackers and uploads off while a script is predicted.

`import wandb` returns an inert module, whether the real package is installed or not. A library that only
probes (`importlib.util.find_spec("wandb")`) gets the true answer, so its own fallbacks stay right. A user's
own module with such a name, such as `aim.py` next to the script, is imported as usual.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.sandbox.inert_objects import Inert, InertModule, RunModule
from pinchpoint.backends.sandbox.rebinding import Rebinding

Swap = Callable[[Any, str, Any], None]
LibraryPatch = Callable[[ModuleType, Swap], None]

# Packages replaced as a whole, with the name they are published under.
TRACKERS = {
    "wandb": "wandb",
    "weave": "weave",
    "swanlab": "swanlab",
    "trackio": "trackio",
    "mlflow": "mlflow",
    "comet_ml": "comet-ml",
    "neptune": "neptune",
    "clearml": "clearml",
    "aim": "aim",
    "dvclive": "dvclive",
    "codecarbon": "codecarbon",
    "tensorboardX": "tensorboardX",
    "torch.utils.tensorboard": "tensorboard",
}
_PREFIXES = tuple(TRACKERS)
_RUN_STYLE = ("wandb", "swanlab", "trackio")
_NEWEST = "9999.0"  # version checks in scripts refuse packages that are too old
_LOGGERS = (
    "pytorch_lightning.loggers.",
    "lightning.pytorch.loggers.",
    "lightning_fabric.loggers.",
    "lightning.fabric.loggers.",
)
_AVAILABLE = re.compile(r"_(WANDB|MLFLOW|COMET|NEPTUNE|TENSORBOARDX?)\w*_AVAILABLE")
_UPLOADS = (
    "accept_",
    "add_",
    "cancel_",
    "change_",
    "comment_",
    "create_",
    "delete_",
    "disable_",
    "duplicate_",
    "edit_",
    "enable_",
    "grant_",
    "hide_",
    "like",
    "merge_",
    "move_",
    "pause_",
    "permanently_",
    "preupload_",
    "reject_",
    "rename_",
    "request_",
    "restart_",
    "resume_",
    "run_job",
    "run_uv_job",
    "scale_",
    "set_",
    "super_",
    "suspend_",
    "unlike",
    "update_",
    "upload_",
)


def environment(scratch: Path) -> dict[str, str]:
    """Environment variables that switch trackers, telemetry and uploads off where they are not replaced."""
    folder = str(scratch / "trackers")
    return {
        "WANDB_MODE": "disabled",
        "WANDB_SILENT": "true",
        "WANDB_DIR": folder,
        "MLFLOW_TRACKING_URI": f"file:{folder}/mlflow",
        "DISABLE_MLFLOW_INTEGRATION": "TRUE",
        "COMET_START_MODE": "disabled",
        "COMET_MODE": "DISABLED",
        "COMET_OFFLINE_DIRECTORY": folder,
        "NEPTUNE_MODE": "debug",
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "disabled",
        "TRACKIO_DIR": folder,
        "DVC_NO_ANALYTICS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # The xet client writes files in native code, to real paths; plain downloads go through the overlay.
        "HF_HUB_DISABLE_XET": "1",
        "DO_NOT_TRACK": "1",
    }


class Trackers(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Context manager: an import hook that provides inert modules, and the variables of `environment`."""

    def __init__(self, scratch: Path, library_patches: Mapping[str, LibraryPatch] | None = None) -> None:
        """library_patches: changes of other libraries, by the name of the module, made after its import."""
        self._library_patches = dict(library_patches or {})
        self._environment = environment(scratch)
        self._patches = Patches()
        self._replaced_modules: dict[str, ModuleType] = {}
        self._swaps: list[tuple[Any, Any]] = []  # old and new function of a patched library
        self._rebinding = Rebinding(self._swaps)

    def __enter__(self) -> Trackers:
        for name, value in self._environment.items():
            self._patches.set_environment(name, value)
        for name in [name for name in sys.modules if _tracker_of(name)]:
            self._replaced_modules[name] = sys.modules.pop(name)
        for name, module in list(sys.modules.items()):
            patch = self._patch_for(name)
            if patch is not None:
                patch(module, self._swap)
        self._rebinding.apply()
        sys.meta_path.insert(0, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.meta_path.remove(self)
        for name in [name for name, module in sys.modules.items() if isinstance(module, InertModule)]:
            folder, _, last = name.rpartition(".")
            del sys.modules[name]
            if folder in sys.modules:  # one of our modules in a real package: torch.utils.tensorboard
                vars(sys.modules[folder]).pop(last, None)
        for name, module in self._replaced_modules.items():
            folder, _, last = name.rpartition(".")
            sys.modules[name] = module
            if folder in sys.modules:
                setattr(sys.modules[folder], last, module)
        self._patches.undo()
        self._rebinding.undo()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        tracker, patch = _tracker_of(fullname), self._patch_for(fullname)
        if tracker and not _is_probe():
            parent = sys.modules.get(fullname.rpartition(".")[0])
            own = None if isinstance(parent, InertModule) else self._elsewhere(fullname, path)
            if own is None or _is_installed(own):
                return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        elif patch is not None:
            spec = self._elsewhere(fullname, path)
            if spec is not None and spec.loader is not None:
                _run_after(spec.loader, lambda module: patch(module, self._swap))
                return spec
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        tracker = _tracker_of(spec.name)
        make = RunModule if spec.name in _RUN_STYLE else InertModule
        return make(spec.name, _version(TRACKERS[tracker]))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""

    def _patch_for(self, name: str) -> LibraryPatch | None:
        return self._library_patches.get(name) or _patch_for(name)

    def _swap(self, owner: Any, name: str, new: Any) -> None:
        self._swaps.append((vars(owner)[name], new))
        self._patches.set(owner, name, new)

    def _elsewhere(self, name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """The spec of the module that the other finders would import."""
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path) if finder is not self and find is not None else None
            if spec is not None:
                return spec
        return None


def _tracker_of(name: str) -> str:
    """The tracker that a module belongs to, or ""."""
    if not name.startswith(_PREFIXES):
        return ""
    return next((tracker for tracker in TRACKERS if name == tracker or name.startswith(tracker + ".")), "")


def _is_probe() -> bool:
    """Whether the caller is `importlib.util.find_spec`, which only checks for a package, not an import."""
    frame = sys._getframe(2)  # the import system's _find_spec
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        if frame.f_code.co_name == "_find_and_load":
            return False
        frame = frame.f_back
    return True


def _is_installed(spec: importlib.machinery.ModuleSpec) -> bool:
    """Whether the module is an installed package, rather than a user's own module next to the script."""
    places = [spec.origin or "", *(spec.submodule_search_locations or [])]
    return any(part in place for place in places for part in ("site-packages", "dist-packages"))


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return _NEWEST


def _run_after(loader: Any, patch: Callable[[ModuleType], None]) -> None:
    """Call `patch` with a module right after it was loaded, before other modules import names from it."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        patch(module)

    loader.exec_module = exec_module


def _patch_for(name: str) -> LibraryPatch | None:
    """The patch for a library that uses trackers or uploads by itself."""
    if name == "transformers.integrations.integration_utils":
        return _no_reports
    if name == "huggingface_hub.hf_api":
        return _no_uploads
    return _loggers_available if name.startswith(_LOGGERS) else None


def _no_reports(module: ModuleType, swap: Swap) -> None:
    """Make `report_to="wandb"` add no callback and not require the package."""
    swap(module, "get_reporting_integration_callbacks", lambda report_to: [])


def _loggers_available(module: ModuleType, swap: Swap) -> None:
    """Make Lightning's loggers available although they check for the installed package."""
    for name in filter(_AVAILABLE.fullmatch, list(vars(module))):
        swap(module, name, _Available())


def _no_uploads(module: Any, swap: Swap) -> None:
    """Make everything that changes the hub do nothing; reading and downloading still work."""
    for owner in (module, module.HfApi):
        for name, value in list(vars(owner).items()):
            is_method = owner is module.HfApi or isinstance(getattr(value, "__self__", None), module.HfApi)
            if name.startswith(_UPLOADS) and callable(value) and is_method:
                swap(owner, name, lambda *args, **kwargs: Inert())


class _Available:
    """True, like Lightning's own flag; one object per name, so that each can be restored."""

    def __bool__(self) -> bool:
        return True
