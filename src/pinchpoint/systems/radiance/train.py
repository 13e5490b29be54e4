"""Train a radiance-field GAN: resumable to the bit on a CPU, with a sheet of pictures and a distance now and then.

Started by torchrun, its processes train together, each with images of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput, DoesNotFit, Missing
from pinchpoint.core.files import check_folder, make_folder
from pinchpoint.systems.common import logs
from pinchpoint.systems.common.budgets import Chosen, budget_of
from pinchpoint.systems.common.distributed import NEXT, Ranks, joined
from pinchpoint.systems.common.lockstep import follow, lead
from pinchpoint.systems.common.precision import check_precision
from pinchpoint.systems.common.runs import CONFIG
from pinchpoint.systems.common.torch_loop import take_steps
from pinchpoint.systems.common.training_loop import Ended, Progress, Report, preparing
from pinchpoint.systems.radiance.budget import beside_bytes, chunk_for
from pinchpoint.systems.radiance.data.images import Images
from pinchpoint.systems.radiance.evaluate import kernel_distance_of, some_real
from pinchpoint.systems.radiance.metrics.features import Extractor, open_extractor
from pinchpoint.systems.radiance.orbit import VIEWS, codes_of, views
from pinchpoint.systems.radiance.plots import save_sheet, tiled
from pinchpoint.systems.radiance.records import Training
from pinchpoint.systems.radiance.runs import Run, begin, read_settings
from pinchpoint.systems.radiance.training_step import Stepper

SAMPLES = "samples"
_SHOWN = 4  # things on a sheet of samples
_HEIGHT = 0.35  # of the camera over them, as v


def train(
    data: str | Path,
    output: str | Path,
    *,
    resume: bool = False,
    budget: str | int | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **choices: Any,
) -> Training:
    """Train on the images in `data`; the run lies in `output`. choices: fields of `Settings`.

    budget: bytes, "8GiB" or a card's name; all rays pass at once where that is predicted to stay within it, else in the
    largest chunks that do, computed again in the backward pass. Ctrl-C and SIGTERM write a checkpoint after the step at hand
    and are then raised. Of several processes all give the record that the first one wrote.
    """
    if budget is not None:
        budget_of(budget)  # before the images are read
        _check_alone(budget, choices)
    stored = read_settings(Path(output)).device if resume and (Path(output) / CONFIG).exists() else "auto"
    device = resolve_device(choices.get("device", stored), backend("torch"))
    with joined(device) as ranks:
        tell: Progress = progress if progress is not None and ranks.leads else lambda report: None
        tell(Report("data", 0, 0, note=f"images of {data}"))
        run, images = begin(Path(output), Path(data), resume=resume, choices=choices, ranks=ranks.world)
        for line in images.skipped:
            tell(Report("skipped", 0, 0, note=line))
        check_precision(run.settings.precision, device)
        check_folder(run.folder)
        ranks.agreed()  # no process may find the run's folder made by another before it has looked
        extract = _extractor(run, device) if ranks.leads else None
        with preparing(run, tell):
            run, chosen = _decided(run, images, ranks, budget=budget, device=device, tell=tell)
            learner = _Learner(run, images, extract, device=device, ranks=ranks)
        if not ranks.leads:
            return Training.from_json(follow(run, ranks, restore=learner.restore, take=learner.stepper.step))
        begun = clock()
        first = 0 if (last := run.checkpoints.last()) is None else last.step

        def record(ended: Ended) -> Training:
            taken, spent = ended.step - first, clock() - begun
            return Training(
                target=str(run.folder),
                data=str(data),
                settings=run.settings.to_dict(),
                step=ended.step,
                loss=ended.loss,
                validation=ended.validation,
                best_step=ended.best_step,
                parameters=_count(learner.stepper.generator),
                critic_parameters=_count(learner.stepper.critics),
                images=len(images),
                skipped=images.skipped,
                device=device,
                chunk=run.settings.chunk,
                peak_bytes=ended.peak_bytes,
                seconds=ended.seconds,
                complete=ended.complete,
                predicted_bytes=chosen.predicted_bytes if chosen else None,
                budget_bytes=chosen.budget_bytes if chosen else None,
                steps_per_s=taken / spent if taken > 0 and spent > 0 else None,
                samples=learner.sheets(),
            )

        how: dict[str, Any] = {"device": device, "record": record, "tell": tell, "clock": clock}
        return lead(ranks, lambda: take_steps(run, learner, log=Log, completed=learner.completed, **how))


def _check_alone(budget: str | int, choices: Mapping[str, Any]) -> None:
    """A budget chooses chunk and memory: neither may be dropped without a word."""
    if choices.get("chunk") is not None:
        raise BadInput(
            f"--budget {budget} with --set chunk={choices['chunk']}",
            hint="give one of them: a budget chooses the chunk",
        )
    if choices.get("memory") == "none":
        raise BadInput(
            f"--budget {budget} with --set memory=none",
            hint="give one of them: with a budget alone, memory is none where all rays at once stay within it",
        )


def _extractor(run: Run, device: str) -> Extractor | None:
    if not run.settings.eval_images:
        return None
    try:
        return open_extractor(device=device)
    except Missing as error:
        raise Missing(
            error.what, hint=f"{error.hint}; or train without distances: --set eval_images=0"
        ) from error


def _decided(
    run: Run, images: Images, ranks: Ranks, *, budget: str | int | None, device: str, tell: Progress
) -> tuple[Run, Chosen | None]:
    """The run with the rays it takes at one time; the same in all processes, each of which holds other bytes already."""
    told, chosen = run.settings, None
    if budget is not None and ranks.leads:
        how: dict[str, Any] = {
            "batch": min(told.batch, told.micro or told.batch),
            "rays": told.patch**2,
            "samples": told.samples,
            "budget": budget,
            "device": device,
            "form": told.form,
            "precision": told.precision,
            "features": told.superres > 1,
            "beside": beside_bytes(run.config, told, images, device),
            "progress": lambda text: tell(Report("budget", 0, 0, note=text)),
        }
        try:
            chosen = chunk_for(run.config, memory=told.memory, **how)  # pyright: ignore[reportArgumentType]
        except DoesNotFit:
            if told.memory != "none":
                raise
            told = replace(told, memory="checkpoint")
            chosen = chunk_for(run.config, memory="checkpoint", **how)
        told = replace(told, chunk=chosen.chunk)
    again = ranks.agreed(int(told.memory == "checkpoint"))
    chunk = ranks.agreed(told.chunk or 0) or None
    if budget is not None and again:
        told = replace(told, memory="checkpoint")
    return replace(run, settings=replace(told, chunk=chunk)), chosen


@dataclass(frozen=True)
class Row(logs.Row):
    """One step. loss: the generator's; validation: kernel distance to real images, times 1000."""

    loss_d: float = 0.0
    r1: float = 0.0  # its part in loss_d; 0 at steps without
    norm: float = 0.0  # of both players' gradients, before they were clipped


_COLUMNS = tuple(f.name for f in fields(Row) if f.name not in logs.Log.columns)


class Log(logs.Log):
    columns = (*logs.Log.columns, *_COLUMNS)

    @classmethod
    def row_of(cls, line: Mapping[str, str]) -> Row:
        return _extended(logs.Log.row_of(line), {name: float(line[name]) for name in _COLUMNS})

    @classmethod
    def cells_of(cls, row: logs.Row) -> list[Any]:
        return [*logs.Log.cells_of(row), *(f"{getattr(row, name, 0.0):.8g}" for name in _COLUMNS)]


def _extended(row: logs.Row, found: Mapping[str, float]) -> Row:
    held: dict[str, Any] = {**{f.name: getattr(row, f.name) for f in fields(logs.Row)}, **found}
    return Row(**held)


class _Learner:
    """A stepper with pictures and distances on the way."""

    def __init__(
        self, run: Run, images: Images, extract: Extractor | None, *, device: str, ranks: Ranks
    ) -> None:
        self.folder, self.told, self.config, self.ranks, self.device = (
            run.folder,
            run.settings,
            run.config,
            ranks,
            device,
        )
        self.stepper = Stepper(run.config, run.settings, images.to(device), device, ranks=ranks)
        self.extract = extract
        self.real = (
            None
            if extract is None
            else extract(some_real(images, run.settings.eval_images, seed=run.settings.seed))
        )
        self.holds_back = extract is not None
        self._unread: dict[int, Tensor] = {}

    def step(self, number: int) -> Tensor:
        self.ranks.agreed(NEXT)
        found = self.stepper.step(number)
        self._unread[number] = found
        if number % self.told.sample_every == 0 or number == self.told.steps:
            self.picture(number)
        return found[:2]

    def completed(self, row: logs.Row) -> Row:
        """A row of the log with what only this system has."""
        _, norm, loss_d, r1 = self._unread.pop(row.step).tolist()
        return _extended(row, {"loss_d": loss_d, "r1": r1, "norm": norm})

    def picture(self, number: int) -> None:
        """A row of views for each of some things, the same in every sheet."""
        codes = codes_of(self.config, _SHOWN, seed=self.told.seed, device=self.device)
        height = min(max(_HEIGHT, self.told.v_low), self.told.v_high)
        seen = [views(self.stepper.trained(), codes, at / VIEWS, height).best.cpu() for at in range(VIEWS)]
        sheet = tiled(torch.stack(seen, dim=1).flatten(0, 1), columns=VIEWS)
        save_sheet(make_folder(self.folder / SAMPLES) / f"step-{number:08d}.png", sheet)

    def sheets(self) -> tuple[str, ...]:
        return tuple(f"{SAMPLES}/{file.name}" for file in sorted((self.folder / SAMPLES).glob("step-*.png")))

    def validate(self) -> float:
        assert self.extract is not None and self.real is not None
        count = self.told.eval_images
        return kernel_distance_of(self.stepper.trained(), self.config, self.real, self.extract, count=count)

    def state(self) -> dict[str, Any]:
        return self.stepper.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.stepper.restore(state)


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
