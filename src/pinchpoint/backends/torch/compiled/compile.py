"""`install`: torch.compile on the simulated device.

Dynamo, AOT autograd and inductor of the installed torch run as for a CUDA device, up to the Python code that
allocates buffers and calls kernels. That code then runs on the simulated device: what it allocates, reuses
and frees is observed like everything else, and its Triton kernels do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.compiled import compat
from pinchpoint.backends.torch.compiled.tracing import Tracing
from pinchpoint.backends.torch.observer import Observer


def install(patches: Patches, observer: Observer) -> None:
    """patches: what is suspended while torch compiles, including this."""
    compiler = _Compiler(patches, observer)
    patches.set(torch, "compile", compiler.compile)


class _Compiler:
    def __init__(self, patches: Patches, observer: Observer) -> None:
        self._patches = patches
        self._observer = observer
        self._original: Callable[..., Any] = torch.compile
        self._tracing: Tracing | None = None
        self._backends: list[tuple[dict[str, Any], bool | None, Callable[..., Any]]] = []

    def compile(self, model: Any = None, **options: Any) -> Any:
        """As torch.compile; what cannot be compiled here runs as it is, with a reason."""
        if model is None:
            return lambda model: self.compile(model, **options)
        backend = options.get("backend", "inductor")
        if options.get("disable") or backend == "eager":
            return model
        if backend != "inductor":
            name = backend if isinstance(backend, str) else getattr(backend, "__name__", "of the script")
            self._add_reason(f"the backend {name} is not simulated, and the model runs uncompiled")
            return model
        if self._tracing is None:
            self._tracing = Tracing(self._patches, self._observer, self._failed)
        with self._tracing.section():
            config = self._config(options)
            return self._original(
                model,
                fullgraph=options.get("fullgraph", False),
                dynamic=options.get("dynamic"),
                backend=self._backend(config, options.get("dynamic")),
            )

    def _backend(self, config: dict[str, Any], dynamic: bool | None) -> Callable[..., Any]:
        """One backend for equal settings: as in torch, a function compiled twice is compiled once."""
        for known, known_dynamic, backend in self._backends:
            if known == config and known_dynamic is dynamic:
                return backend

        def lower(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            return compat.lower(graph, inputs, config)

        self._backends.append((config, dynamic, lower))
        return lower

    def _config(self, options: dict[str, Any]) -> dict[str, Any]:
        """The settings of inductor, without those that need a GPU."""
        config = compat.inductor_options(options.get("mode"), options.get("options"), options.get("dynamic"))
        if config.get("triton.cudagraphs") and not config.get("triton.cudagraph_trees", True):
            config["triton.cudagraphs"] = False
            self._add_reason("the memory pools of CUDA graphs without `cudagraph_trees` are not modelled")
        tuned = [name for name in config if name.startswith("max_autotune") and config[name]]
        if tuned:
            config |= dict.fromkeys(tuned, False)
            self._add_reason("which kernels are fastest (max-autotune) is not known without the GPU")
        return config

    def _failed(self, error: Exception) -> None:
        text = " ".join(str(error).split("Set TORCHDYNAMO_VERBOSE")[0].split())[:300]
        self._add_reason(f"a function runs uncompiled, because it cannot be compiled here ({text})")

    def _add_reason(self, what: str) -> None:
        site = self._observer.ledger.site()
        self._observer.notes.add_reason(
            f"{site.file}:{site.line}:torch.compile", f"{what}; compiled code may need more or less memory"
        )
