"""Runs a target's steps on the pretended device and hands back what was observed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pinchpoint.backends.torch.dynamic import Dynamic
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.pretend_library import Progress
from pinchpoint.backends.torch.session import Device, pretending
from pinchpoint.backends.torch.unknown import NeedsCalibration, calibration_wanted
from pinchpoint.core.discover import failed
from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.events import Observation
from pinchpoint.core.workload import Workload

__all__ = ["Device", "Dynamic", "NeedsCalibration", "Observer", "Progress", "Ran", "pretending", "run_steps"]


@dataclass(frozen=True)
class Ran:
    """One target run on the pretended device."""

    seen: Observation
    mode: str
    processed: int | None


def run_steps(
    observer: Observer, thing: Workload | Callable[..., Any], *, text: str, size: int, mode: str | None, variant: str | None,
    chunk: int | None, steps: int, seed: int, half: bool = False,
) -> Ran:  # fmt: skip
    """Build the target for `size` points and take `steps` steps. half: inside bf16 autocast."""
    torch.manual_seed(seed)
    observer.dynamic.size = size
    step, processed = _build(thing, text=text, size=size, mode=mode, variant=variant, chunk=chunk, seed=seed)
    seen = observer.ledger.seen
    observer.ledger.begun = True
    try:
        with _half() if half else contextlib.nullcontext():
            for _ in range(steps):
                step()
                seen.steps += 1
    except (PinchpointError, NeedsCalibration, ModuleNotFoundError):
        raise
    except Exception as error:
        site = calibration_wanted(error, observer.dynamic.unknown)
        if site is not None:
            raise NeedsCalibration(site) from error
        raise failed(text, error, "a step of") from error
    done = "train" if seen.trained else "infer"
    if not isinstance(thing, Workload):
        processed = size if size in seen.counts else None
        if mode is not None and mode != done:
            what = "runs a backward pass" if seen.trained else "runs no backward pass"
            raise BadInput(f"the step of {text} {what}: its mode is {done}", mend=f"leave --mode out, or ask for --mode {done}")
    return Ran(seen, done, processed)


def _build(
    thing: Any, *, text: str, size: int, mode: str | None, variant: str | None, chunk: int | None, seed: int
) -> tuple[Callable[[], Any], int | None]:
    try:
        if isinstance(thing, Workload):
            case = thing.case(size, device="cuda", mode=mode or thing.modes[0], variant=variant, seed=seed, chunk=chunk)  # type: ignore[arg-type]
            return (lambda: case.step(*case.args)), case.processed
        step = thing(size, "cuda")
    except (PinchpointError, NeedsCalibration, ModuleNotFoundError):
        raise
    except Exception as error:
        raise failed(text, error, f"building {size:,} points of") from error
    if not callable(step):
        raise BadInput(
            f"{text} returned {type(step).__name__}, not a step", mend="return a function that does one step when called"
        )
    return step, None


@contextlib.contextmanager
def _half() -> Iterator[None]:
    with torch.autocast("cuda", torch.bfloat16):
        yield
