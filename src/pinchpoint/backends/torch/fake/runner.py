"""`run_steps`: run a target's steps on the simulated device and return what was observed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pinchpoint.backends.torch.data_dependent.operations import Dynamic
from pinchpoint.backends.torch.data_dependent.unknown_values import NeedsCalibration, calibration_site
from pinchpoint.backends.torch.fake.progress import Progress, peaks_between
from pinchpoint.backends.torch.fake.session import Device, simulate_device
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.events import Observation
from pinchpoint.core.failures import failure
from pinchpoint.core.settings import Overrides
from pinchpoint.core.workload import BuiltStep, Workload, build

__all__ = [
    "Device",
    "Dynamic",
    "FakeRun",
    "NeedsCalibration",
    "Observer",
    "Progress",
    "peaks_between",
    "run_steps",
    "simulate_device",
]


@dataclass(frozen=True)
class FakeRun:
    """The result of a target's steps on the simulated device."""

    observation: Observation
    mode: str
    processed: int | None


def run_steps(
    observer: Observer,
    thing: Workload | Callable[..., Any],
    *,
    text: str,
    size: int,
    mode: str | None,
    variant: str | None,
    chunk: int | None,
    steps: int,
    seed: int,
    half: bool = False,
    settings: Overrides | None = None,
) -> FakeRun:
    """Build the target for `size` points and run `steps` steps. half: inside bf16 autocast."""
    torch.manual_seed(seed)
    observer.dynamic.size = size
    case = _build(
        thing, text=text, size=size, mode=mode, variant=variant, chunk=chunk, seed=seed, settings=settings
    )
    observation = observer.ledger.observation
    observer.ledger.step_started = True
    try:
        with _half() if half else contextlib.nullcontext():
            for _ in range(steps):
                case.run()
                observation.steps += 1
    except (PinchpointError, NeedsCalibration, ModuleNotFoundError):
        raise
    except Exception as error:
        site = calibration_site(error, observer.dynamic.unknown_site)
        if site is not None:
            raise NeedsCalibration(site) from error
        raise failure(text, error, "a step of") from error
    if isinstance(thing, Workload):
        # Inference of a workload may differentiate too: forces, for example, are gradients.
        return FakeRun(observation, mode or thing.modes[0], case.processed)
    actual_mode = "train" if observation.trained else "infer"
    if mode is not None and mode != actual_mode:
        what = "runs a backward pass" if observation.trained else "runs no backward pass"
        raise BadInput(
            f"The step of {text} {what}, so its mode is {actual_mode}, not {mode}.",
            hint=f"Leave --mode out, or use --mode {actual_mode}.",
        )
    processed = (
        case.processed if case.processed is not None else (size if size in observation.counts else None)
    )
    return FakeRun(observation, actual_mode, processed)


def _build(thing: Any, *, text: str, size: int, **how: Any) -> BuiltStep:
    try:
        return build(thing, size, text=text, device="cuda", **how)
    except (PinchpointError, NeedsCalibration, ModuleNotFoundError):
        raise
    except Exception as error:
        raise failure(text, error, f"building {size:,} points of") from error


@contextlib.contextmanager
def _half() -> Iterator[None]:
    with torch.autocast("cuda", torch.bfloat16):
        yield
