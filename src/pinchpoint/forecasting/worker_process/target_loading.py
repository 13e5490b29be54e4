"""Loading a target in the worker process: imported once, for torch under a simulated device.

Every forecast module (torch, JAX, scripts) starts from the `LoadedTarget` that `load_target` returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinchpoint.backends.torch import versions
from pinchpoint.core import targets
from pinchpoint.core.errors import Missing, PinchpointError
from pinchpoint.core.targets import Target
from pinchpoint.forecasting import allocator_settings
from pinchpoint.forecasting.cards import Card, card

NEEDED = "packages"  # key of an answer: the packages without which the target failed
STATUS_FILE = "status.txt"  # in the worker's folder; its first line says what is being done
Fork = Callable[[Callable[[], dict[str, Any]]], dict[str, Any]]


@dataclass(frozen=True)
class LoadedTarget:
    """An imported target and the simulated device it was imported under (None for JAX)."""

    target: Target
    thing: Any
    framework: str
    card: Card
    observer: Any = None
    only_card: bool = False  # whether a forecast answers for this card only, and ...
    find_least: bool = False  # ... finds with how few bytes it would fit
    shapes: Path | None = None  # file in which forecasts pass on the results of shape rules
    status: int | None = None  # descriptor of the file that says what is being done, for the parent


def load_target(hello: dict[str, Any], stack: contextlib.ExitStack) -> LoadedTarget:
    """Import the target. For torch, the simulated device is active before the first import."""
    target = Target(**hello["target"])
    chosen_card = card(hello["card"])
    if targets.likely_framework(target) == "torch":
        observer = _simulate_device(chosen_card, stack)
        if target.kind == "script":
            return LoadedTarget(target, None, "torch", chosen_card, observer)
        thing = _load(target, observer)
        if targets.framework_of(thing) == "torch":
            return LoadedTarget(target, thing, "torch", chosen_card, observer)
        # The source did not show that this target uses JAX; it must not run under the simulated torch device.
        stack.close()
    load_jax_observer()  # before any fork, so that every request finds it imported
    if target.kind == "script":
        return LoadedTarget(target, None, "jax", chosen_card)
    return LoadedTarget(target, targets.load(target), "jax", chosen_card)


def _load(target: Target, observer: Any) -> Any:
    """Import the target, with stand-ins for the CUDA packages that it turns out to need."""
    while True:
        try:
            return targets.load(target)
        except (PinchpointError, ImportError) as error:
            packages = observer.stand_ins.wanted(error)
            if not packages:
                raise
            observer.stand_ins.serve(packages)


def with_stand_ins(run: Callable[[list[str]], dict[str, Any]], packages: list[str]) -> dict[str, Any]:
    """Run a target, and again with each CUDA package that it turns out to need; `packages` collects them."""
    while True:
        answer = run(packages)
        needed = answer.get(NEEDED, ())
        if not needed:
            return answer
        packages += needed


def _simulate_device(chosen_card: Card, stack: contextlib.ExitStack) -> Any:
    try:
        if versions.is_too_old(version := versions.installed()):
            raise Missing(
                f"PyTorch {version} is not supported; pinchpoint needs 2.6 or later.",
                hint="Run pip install --upgrade 'pinchpoint[torch]'.",
            )
        from pinchpoint.backends.torch.fake import runner
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Missing(
            "PyTorch is not installed.",
            hint="Run pip install 'pinchpoint[torch]' (the CPU build is enough).",
        ) from error
    shares_workspace = versions.rules().shares_workspace
    device = runner.Device(
        title=chosen_card.title,
        memory_bytes=chosen_card.memory_bytes,
        capability=chosen_card.capability,
        cublas_workspace_bytes=allocator_settings.cublas_workspace_bytes(chosen_card.cublas_workspace_bytes),
        cublaslt_workspace_bytes=0 if shares_workspace else chosen_card.cublaslt_workspace_bytes,
        processors=chosen_card.processors,
    )
    return stack.enter_context(
        runner.simulate_device(device, dynamic=runner.Dynamic(), progress=runner.Progress())
    )


def load_jax_observer() -> Any:
    """Import the function that analyses JAX programs, or raise an error that says how to install JAX."""
    try:
        from pinchpoint.backends.jax.analysis import observe_factory
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise Missing("JAX is not installed.", hint="Run pip install 'pinchpoint[jax]'.") from error
    return observe_factory
