"""The stages of one system in the demo: predict and study where there are sizes, verify, draw.

A stage that fails does not stop the ones after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pinchpoint.core.demo import Picture, Show
from pinchpoint.core.errors import Bug, PinchpointError, to_dict
from pinchpoint.core.records import Forecast
from pinchpoint.core.units import show_bytes, show_size
from pinchpoint.forecasting.forecaster import Forecaster, Forecasts

REPEATS = 10  # timed pairs of steps; fewer if they take longer than `Show.verify_s`
Message = dict[str, Any]  # what a process of the demo sends; see `run_stages`


@dataclass(frozen=True)
class Stage:
    """A stage: its name, what it does, and the function that does it and returns what to send."""

    name: str
    what: str
    run: Callable[[], Message]


def run_stages(module: ModuleType, output: Path, *, seed: int, device: str) -> Iterator[Message]:
    """Run the stages of a system, and yield a message before and after each one.

    Each has the keys `stage` and `what`; after the stage also `seconds`, and `record`, `picture` or `error`.
    """
    with ExitStack() as stack:
        forecasts = _SharedForecasts(stack, module.SHOW, seed=seed)
        for stage in stages_of(module, output, forecasts, seed=seed, device=device):
            about = {"stage": stage.name, "what": stage.what}
            yield about
            start = time.perf_counter()
            result = _run(stage)
            yield {**about, "seconds": time.perf_counter() - start, **result}


def _run(stage: Stage) -> Message:
    try:
        return stage.run()
    except PinchpointError as error:
        return {"error": to_dict(error)}
    except Exception as error:  # not hidden: it is reported, and the demo ends with exit code 1
        text = " ".join(f"{type(error).__name__}: {error}".split())
        bug = Bug(text, hint="This is a bug in pinchpoint; run with --debug and report what it prints.")
        bug.__cause__ = error
        return {"error": to_dict(bug)}


class _SharedForecasts:
    """Forecasts of a system by one process for all of its stages, started by the first that needs it."""

    def __init__(self, stack: ExitStack, show: Show, *, seed: int) -> None:
        self._stack, self._show, self._seed = stack, show, seed
        self._forecaster: Forecaster | None = None

    def predict(self, **options: Any) -> Forecast:
        if self._forecaster is None:
            forecaster = Forecaster(self._show.workload, seed=self._seed, settings=self._show.settings)
            self._forecaster = self._stack.enter_context(forecaster)
        return self._forecaster.predict(**options)


def stages_of(
    module: ModuleType, output: Path, forecasts: Forecasts, *, seed: int, device: str
) -> list[Stage]:
    show: Show = module.SHOW
    stages = []
    if show.sizes:
        most = show_size(show.sizes[-1])
        stages += [
            Stage(
                "predict",
                f"peak of a training step at size {most}",
                lambda: _predict(show, output, forecasts),
            ),
            Stage(
                "study",
                f"growth of the peak up to size {most}",
                lambda: _study(show, output, forecasts, seed=seed),
            ),
        ]
    return [
        *stages,
        Stage("verify", show.task, lambda: _verify(show, output, forecasts, seed=seed, device=device)),
        Stage("draw", show.picture, lambda: _draw(module, output, seed=seed, device=device)),
    ]


def _predict(show: Show, output: Path, forecasts: Forecasts) -> Message:
    forecast = forecasts.predict(size=show.sizes[-1], mode="train")
    path = forecast.save(output / f"{show.workload}-forecast.json")
    return {"record": str(path), "result": show_bytes(forecast.peak_allocated_bytes)}


def _study(show: Show, output: Path, forecasts: Forecasts, *, seed: int) -> Message:
    from pinchpoint.core.discovery import load_workload
    from pinchpoint.studies.study import study

    folder = output / f"{show.workload}-study"
    study(
        show.workload,
        sizes=show.sizes,
        modes=("train",),
        variants=(load_workload(show.workload).baseline.name, show.variant),
        on="fake",
        output=folder,
        overwrite=True,
        seed=seed,
        forecaster=forecasts,
    )
    return {"record": str(folder / "study.json")}


def _verify(show: Show, output: Path, forecasts: Forecasts, *, seed: int, device: str) -> Message:
    from pinchpoint.verification.verify import verify

    verdict = verify(
        show.workload,
        variant=show.variant,
        size=show.verify_size,
        mode=show.verify_mode,
        device=device,
        seed=seed,
        repeats=REPEATS,
        limit_s=show.verify_s,
        settings=show.settings,
        forecaster=forecasts,
    )
    path = verdict.save(output / f"{show.workload}-verdict.json")
    return {"record": str(path), "result": verdict.status}


def _draw(module: ModuleType, output: Path, *, seed: int, device: str) -> Message:
    picture: Picture = module.draw(output, device=device, seed=seed)
    return {
        "picture": {"path": str(picture.path), "title": picture.title, "caption": picture.caption},
        "result": picture.path.name,
    }
