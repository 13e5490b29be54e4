"""`StandIns`: serves stand-ins for CUDA packages to a target's imports, and says which ones it needs.

A package that is installed here but cannot run without CUDA is replaced from the start. One that is absent
stays absent, as it may be on the machine with the GPU: many libraries try to import a package and do without
it. Only if the target fails because of an absent package is it run again with that stand-in (`wanted`).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.ledger import is_library_file
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages.bitsandbytes import Layers
from pinchpoint.backends.torch.packages.changed_modules import CHANGES, changed_spec
from pinchpoint.backends.torch.packages.unknown_kernels import unmodelled_name
from pinchpoint.core.errors import BadInput, PinchpointError

Modules = dict[str, dict[str, Any]]  # the name of a module -> its attributes


@dataclass(frozen=True)
class Package:
    """A package with a stand-in. version: the one whose source the stand-in follows.

    home: our module whose `modules(observer)` returns the stand-in; empty: every name is unmodelled.
    words: how error messages of libraries name the package, in lower case.
    install: how to install its Python without CUDA, for what the stand-in lacks.
    runs: whether its own code runs on the simulated device, so that it is replaced only if it is absent.
    replaced: the modules that are replaced if it is installed; the others are its own. Empty: all of them.
    """

    distribution: str
    version: str
    home: str
    words: tuple[str, ...] = ()
    runs: bool = False
    install: str = ""
    replaced: tuple[str, ...] = ()


PACKAGES = {
    "flash_attn": Package(
        "flash-attn", "2.8.3", "flash_attn", ("flash_attn", "flash-attn", "flashattention", "flash attention")
    ),
    "xformers": Package("xformers", "0.0.35", "xformers", ("xformers",)),
    "liger_kernel": Package(
        "liger-kernel",
        "0.8.5",
        "liger",
        ("liger_kernel", "liger-kernel", "liger"),
        runs=True,
        install="pip install --no-deps liger-kernel",
    ),
    "mamba_ssm": Package(
        "mamba-ssm",
        "2.3.2",
        "mamba",
        ("mamba_ssm", "mamba-ssm"),
        runs=True,
        install=(
            "MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE pip install --no-deps --no-build-isolation "
            "mamba-ssm, and causal-conv1d likewise"
        ),
    ),
    "causal_conv1d": Package(
        "causal-conv1d",
        "1.7.0",
        "mamba",
        ("causal_conv1d", "causal-conv1d"),
        runs=True,
        install=(
            "CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_FORCE_BUILD=TRUE pip install --no-deps "
            "--no-build-isolation causal-conv1d"
        ),
    ),
    # The compiled parts of the two, for their own Python without them, and for copies of it.
    "selective_scan_cuda": Package("mamba-ssm", "2.3.2", "mamba", ("selective_scan_cuda",)),
    "causal_conv1d_cuda": Package("causal-conv1d", "1.7.0", "mamba", ("causal_conv1d_cuda",)),
    "bitsandbytes": Package(
        "bitsandbytes",
        "0.50.2",
        "optimizers",
        ("bitsandbytes",),
        install="pip install --no-deps bitsandbytes",
        replaced=("bitsandbytes.optim",),
    ),
    "apex": Package("apex", "0.1", "optimizers", ("apex",)),
    "triton": Package("triton", "3.4.0", "triton", ("triton",)),
}

# Packages that need CUDA and whose kernels are not modelled: all their names can be imported.
_UNMODELLED = (
    "cupy",
    "diff_gaussian_rasterization",
    "flash_attn_interface",
    "flashinfer",
    "nvdiffrast",
    "sageattention",
    "simple_knn",
    "spconv",
    "tinycudann",
    "transformer_engine",
)
PACKAGES |= {
    name: Package(name.replace("_", "-"), "0", "", (name, name.replace("_", "-")), runs=True)
    for name in _UNMODELLED
}


class StandIns(importlib.abc.MetaPathFinder):
    """The first finder of the import system during a forecast."""

    def __init__(self, observer: Observer, layers: Layers | None = None) -> None:
        self.observer = observer
        self._layers = layers  # of bitsandbytes, if it is installed
        self.served: set[str] = set()
        self.asked: set[str] = set()  # absent packages that the target's own files tried to import
        self._modules: Modules = {}
        self._versions: dict[str, str] = {}

    def serve(self, names: Sequence[str], *, installed: bool = False) -> None:
        """Serve stand-ins for these packages from now on."""
        for name in names:
            package = PACKAGES.get(name)
            if package is None:
                raise BadInput(
                    f"There is no stand-in for the package {name!r}.",
                    hint=f"Use one of: {', '.join(PACKAGES)}.",
                )
            if not installed and _is_installed(name):
                continue
            self._versions[name] = package.version
            if installed:
                with suppress(importlib.metadata.PackageNotFoundError):
                    self._versions[name] = importlib.metadata.version(package.distribution)
            elif name not in self.served:
                how = f"its memory is modelled after version {package.version}"
                if name == "triton":
                    how = "its kernels are recorded but not run"
                elif not package.home:
                    how = "pinchpoint does not know its kernels"
                self.observer.note(f"{name} is not installed here: {how}")
            self.served.add(name)
            if package.home:
                home = importlib.import_module(f"{__package__}.{package.home}")
                self._modules |= home.modules(self.observer)
        importlib.invalidate_caches()

    def note_optional(self) -> None:
        """Note the packages that the target's own files tried to import and then did without."""
        for name in sorted(self.asked - self.served):
            self.observer.note(
                f"{name} is not installed here, and the script runs without it: add --with-package {name} "
                "if it will be installed"
            )

    # --- imports

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in CHANGES:
            return changed_spec(fullname, path, lambda module: CHANGES[fullname](module, self.observer))
        top = fullname.partition(".")[0]
        if top not in self.served:
            return None
        replaced = PACKAGES[top].replaced
        if replaced and self._layers is not None and not f"{fullname}.".startswith(_prefixes(replaced)):
            return self._layers.find_spec(fullname, path)
        return importlib.machinery.ModuleSpec(fullname, _Loader(self), origin="pinchpoint", is_package=True)

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        """Metadata of the stand-ins, for libraries that ask for a version."""
        wanted = getattr(context, "name", None)
        for name in sorted(self.served):
            if name.endswith("_cuda"):
                continue
            if wanted is None or wanted.replace("-", "_").lower() in (name, _module_name(name)):
                yield _StandInDistribution(name, PACKAGES[name].distribution, self._versions[name])

    def module(self, name: str) -> types.ModuleType:
        module = types.ModuleType(name, "A stand-in of pinchpoint.")
        attributes: dict[str, Any] = {
            "__version__": self._versions[name.partition(".")[0]],
            "__path__": [],
            "__file__": f"<pinchpoint stand-in>/{name.replace('.', '/')}/__init__.py",
            **self._modules.get(name, {}),
        }

        def missing(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
            full = f"{name}.{attribute}"
            if full in self._modules:
                return importlib.import_module(full)
            return unmodelled_name(full, self.observer, install=PACKAGES[name.partition(".")[0]].install)

        vars(module).update(attributes)
        module.__getattr__ = missing  # type: ignore[method-assign]
        return module

    # --- which packages a target needs

    def wanted(self, error: BaseException | None) -> list[str]:
        """Packages with a stand-in, not served yet, whose absence explains the error of a target."""
        errors: list[BaseException] = []
        while error is not None and error not in errors:
            errors.append(error)
            error = error.__cause__ or error.__context__
        names: set[str] = set()
        # The first error that names a package counts: those behind it may have been handled.
        for link in errors:
            if names:
                break
            text = f"{link} {getattr(link, 'name', None) or ''}".lower()
            if isinstance(link, ImportError) or "install" in text:
                names |= {
                    name
                    for name, package in PACKAGES.items()
                    if any(
                        re.search(rf"(?<![a-z_]){re.escape(word)}(?![a-z_])", text) for word in package.words
                    )
                }
        if errors and not names and not any(isinstance(e, (PinchpointError, ImportError)) for e in errors):
            names = self.asked  # `try: import flash_attn` with no other way when it is used
        return sorted(names - self.served)


class _Asked(importlib.abc.MetaPathFinder):
    """The last finder, which is asked only for what no other finder knows."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._stand_ins = stand_ins

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname not in PACKAGES or fullname in self._stand_ins.served:
            return
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None and not is_library_file(frame.f_code.co_filename):
            self._stand_ins.asked.add(fullname)


class _Loader(importlib.abc.Loader):
    def __init__(self, stand_ins: StandIns) -> None:
        self._stand_ins = stand_ins

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._stand_ins.module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _StandInDistribution(importlib.metadata.Distribution):
    def __init__(self, module: str, distribution: str, version: str) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
            "top_level.txt": f"{module}\n",
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return Path(path)


def _prefixes(modules: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{module}." for module in modules)


def _module_name(name: str) -> str:
    return PACKAGES[name].distribution.replace("-", "_").lower()


@contextmanager
def install(patches: Patches, observer: Observer) -> Iterator[StandIns]:
    """Serve stand-ins to the imports in this context."""
    stand_ins = StandIns(observer, Layers(patches, observer) if _is_installed("bitsandbytes") else None)
    finders = [stand_ins, _Asked(stand_ins)]
    present = [name for name in PACKAGES if not PACKAGES[name].runs and _is_installed(name)]
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES}
    for name in [name for name in before if name.partition(".")[0] in present]:
        del sys.modules[name]
    stand_ins.serve(present, installed=True)
    sys.meta_path.insert(0, finders[0])
    sys.meta_path.append(finders[1])
    try:
        yield stand_ins
    finally:
        for finder in finders:
            sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in stand_ins.served]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_installed(name: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(name) is not None
