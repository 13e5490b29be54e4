"""Runs the cases of one system in a process of its own: `python -m ...bench.worker JSON`.

A process per system keeps the memory of JAX and torch apart, and a crash loses no other system. The record is
written after every case, and a case that the record holds already is not run again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pinchpoint.systems
from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.console import printing
from pinchpoint.core import machine
from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import parse_json
from pinchpoint.core.records import now
from pinchpoint.systems.common.bench.cases import SIZES, BenchCase, Setup, Sizes
from pinchpoint.systems.common.bench.records import Bench, Comparison
from pinchpoint.systems.common.bench.runner import compare


@dataclass(frozen=True)
class Request:
    """What to run. cases: None for all. sizes: None for those that suit the device."""

    system: str
    folder: str
    device: str = "auto"
    sizes: Sizes | None = None
    cases: tuple[str, ...] | None = None
    repeats: int = 15
    limit_s: float = 60.0
    seed: int = 0
    command: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def bench_system(request: Request, *, tell: Callable[[str], None] = lambda text: None) -> Bench:
    """Run the cases of a system that its record lacks, and return the record."""
    system = import_module(f"{pinchpoint.systems.__name__}.{request.system}")
    cases = chosen_cases(request)
    framework = backend(system.WORKLOAD.framework)
    device = resolve_device(request.device, framework)
    sizes: Sizes = request.sizes or ("report" if device == "cuda" else "small")
    path = record_path(request.folder, request.system)
    bench = open_record(path, Bench(request.system, device, sizes))
    gpu = machine.describe()["gpu"] if device == "cuda" else None
    for case in cases:
        if sizes not in case.size:
            continue
        stored = bench.case(case.name)
        if stored is not None and not stored.failure:
            tell(f"{case.name}: already in {path}")
            continue
        setup = Setup(device, sizes, case.size[sizes], request.seed, gpu)
        start = time.perf_counter()
        try:
            comparison = compare(
                case,
                setup,
                framework,
                repeats=request.repeats,
                limit_s=request.limit_s,
                command=request.command,
                tell=lambda text, name=case.name: tell(f"{name}: {text}"),
            )
        except Exception as error:  # the other cases still run; the record has the reason
            comparison = _failed(case, setup, error, time.perf_counter() - start, request.command)
            tell(f"{case.name}: failed: {comparison.failure}")
        bench = bench.with_case(comparison)
        bench.save(path)
    return bench


def chosen_cases(request: Request) -> Sequence[BenchCase]:
    """Return the cases of a system, or those that the request names."""
    module = import_module(f"{pinchpoint.systems.__name__}.{request.system}.bench")
    cases: Sequence[BenchCase] = module.cases()
    if request.cases is None:
        return cases
    chosen = [case for case in cases if case.name in request.cases]
    if not chosen:
        raise BadInput(
            f"{request.system} has no case {' or '.join(map(repr, request.cases))}.",
            hint=f"Use one of: {', '.join(case.name for case in cases)}.",
        )
    return chosen


def record_path(folder: str | Path, system: str) -> Path:
    return Path(folder) / f"{system}.json"


def open_record(path: Path, new: Bench) -> Bench:
    """Return the record at a path, or `new` if there is none. It must be of the same device and sizes."""
    if not path.exists():
        return new
    try:
        stored = Bench.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(
            f"{path} is not a record of pinchpoint bench.", hint="Name another folder with -o."
        ) from error
    if (stored.system, stored.device, stored.sizes) != (new.system, new.device, new.sizes):
        raise BadInput(
            f"{path} holds {stored.sizes} sizes on {stored.device}, not {new.sizes} sizes on {new.device}.",
            hint="Name another folder with -o.",
        )
    return stored


def _failed(case: BenchCase, setup: Setup, error: Exception, wall_s: float, command: str) -> Comparison:
    what = error.what if isinstance(error, PinchpointError) else f"{type(error).__name__}: {error}"
    return Comparison(
        case.name,
        case.title,
        case.claim,
        case.axis,
        setup.size,
        {},
        (),
        None,
        (),
        " ".join(what.split())[:500],
        wall_s,
        command,
        machine.describe(),
        now(),
    )


def main(argument: str) -> int:
    values: dict[str, Any] = parse_json(argument)
    values["cases"] = None if values["cases"] is None else tuple(values["cases"])
    assert values["sizes"] in (None, *SIZES)
    request = Request(**values)
    try:
        with printing.progress(request.system) as tell:
            bench = bench_system(request, tell=tell)
    except PinchpointError as error:
        printing.say(f"error: {error.what}\n  hint: {error.hint}")
        return error.exit_code
    except KeyboardInterrupt:  # the process that started this one says what was saved
        return 130
    return 1 if any(one.failure for one in bench.comparisons) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
