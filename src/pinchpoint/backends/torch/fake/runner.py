"""Runs a target's steps on the pretended device and hands back what was observed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pinchpoint.backends.torch.data_dependent.operations import Dynamic
from pinchpoint.backends.torch.data_dependent.unknown_values import NeedsCalibration, calibration_wanted
from pinchpoint.backends.torch.fake.library import Progress
from pinchpoint.backends.torch.fake.session import Device, pretending
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.events import Observation
from pinchpoint.core.settings import Overrides
from pinchpoint.core.targets import explain_failure
from pinchpoint.core.workload import BuiltStep, Workload, build

__all__ = ["Device", "Dynamic", "NeedsCalibration", "Observer", "Progress", "Ran", "pretending", "run_steps"]


@dataclass(frozen=True)
class Ran:
    """One target run on the pretended device."""

    seen: Observation
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
) -> Ran:
    """Build the target for `size` points and take `steps` steps. half: inside bf16 autocast."""
    torch.manual_seed(seed)
    observer.dynamic.size = size
    built = _build(
        thing, text=text, size=size, mode=mode, variant=variant, chunk=chunk, seed=seed, settings=settings
    )
    seen = observer.ledger.seen
    observer.ledger.begun = True
    try:
        with _half() if half else contextlib.nullcontext():
            for _ in range(steps):
                built.run()
                seen.steps += 1
    except (PinchpointError, NeedsCalibration, ModuleNotFoundError):
        raise
    except Exception as error:
        site = calibration_wanted(error, observer.dynamic.unknown)
        if site is not None:
            raise NeedsCalibration(site) from error
        raise explain_failure(text, error, "a step of") from error
    if isinstance(thing, Workload):
        # What a workload calls inference may differentiate too: forces are gradients.
        return Ran(seen, mode or thing.modes[0], built.processed)
    done = "train" if seen.trained else "infer"
    if mode is not None and mode != done:
        what = "runs a backward pass" if seen.trained else "runs no backward pass"
        raise BadInput(
            f"the step of {text} {what}: its mode is {done}",
            hint=f"leave --mode out, or ask for --mode {done}",
        )
    processed = built.processed if built.processed is not None else (size if size in seen.counts else None)
    return Ran(seen, done, processed)


def _build(thing: Any, *, text: str, size: int, **how: Any) -> BuiltStep:
    try:
        return build(thing, size, text=text, device="cuda", **how)
    except (PinchpointError, NeedsCalibration, ModuleNotFoundError):
        raise
    except Exception as error:
        raise explain_failure(text, error, f"building {size:,} points of") from error


@contextlib.contextmanager
def _half() -> Iterator[None]:
    with torch.autocast("cuda", torch.bfloat16):
        yield
