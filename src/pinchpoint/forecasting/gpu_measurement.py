"""Measurement for `predict --measure`: the same step on this machine's GPU, in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from pinchpoint.core import errors, targets
from pinchpoint.core.errors import BadInput, Missing, PinchpointError, TargetFailed, TimedOut
from pinchpoint.core.records import Forecast
from pinchpoint.core.targets import Target
from pinchpoint.core.workload import build

# One of these exists where a driver of NVIDIA (also in WSL) or AMD is loaded.
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


def check_measurable(target: Target) -> None:
    """Raise before anything is predicted if the target cannot be measured here.

    A GPU that the framework cannot use is found later, by the measurement itself.
    """
    if target.kind == "script":
        raise BadInput(
            f"{target.text} is a script and cannot be measured, because it would train for real.",
            hint="Measure file.py:NAME of a step factory instead.",
        )
    if not any(map(os.path.exists, _DEVICE_FILES)):
        raise Missing(
            "No CUDA device is available to measure on: no driver is loaded on this machine.",
            hint="Leave --measure out, or run it on a machine with a GPU.",
        )


def measure(
    target: Target,
    forecast: Forecast,
    *,
    chunk: int | None,
    steps: int,
    seed: int,
    timeout_s: float,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, int]:
    """Peaks of `steps` real steps: allocated_bytes, reserved_bytes and total_bytes.

    environment: variables that the process gets besides those of this one
    """
    request = {
        "target": asdict(target),
        "framework": forecast.framework,
        "size": forecast.size,
        "mode": forecast.mode,
        "variant": forecast.variant,
        "chunk": chunk,
        "steps": steps,
        "seed": seed,
        "settings": forecast.settings,
    }
    command = [sys.executable, "-m", "pinchpoint.forecasting.gpu_measurement"]
    try:
        process = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise TimedOut(
            f"Measuring {target.text} took longer than {timeout_s:g} s.", hint="Raise --timeout."
        ) from error
    if process.returncode != 0 or not process.stdout.strip():
        last = (process.stderr.strip().splitlines() or ["no output"])[-1]
        raise TargetFailed(
            f"Measuring {target.text} failed: {last}",
            hint="Run the step on this GPU without pinchpoint to see the error.",
        )
    answer = json.loads(process.stdout.strip().splitlines()[-1])
    if "error" in answer:
        raise errors.from_dict(answer)
    return answer


def _measure(request: dict[str, Any]) -> dict[str, int | None]:
    from pinchpoint.backends.base import backend, resolve_device

    framework = backend(request["framework"])
    device = resolve_device("cuda", framework)
    thing = targets.load(Target(**request["target"]))
    framework.seed(request["seed"])
    framework.reset_peak(device)
    step = build(
        thing,
        request["size"],
        text=request["target"]["text"],
        device=device,
        mode=request["mode"],
        variant=request["variant"],
        seed=request["seed"],
        chunk=request["chunk"],
        settings=request["settings"],
    )
    for _ in range(request["steps"]):
        framework.wait(device, step.run())
    peaks = framework.peaks(device)
    return {
        "allocated_bytes": peaks.allocated_bytes,
        "reserved_bytes": peaks.reserved_bytes,
        "total_bytes": peaks.total_bytes,
    }


if __name__ == "__main__":
    try:
        print(json.dumps(_measure(json.loads(sys.stdin.read()))))
    except PinchpointError as error:
        print(json.dumps(errors.to_dict(error)))
