"""Training of a radiance-field GAN, resumable to the bit on a CPU, with regular image sheets and distances.

Processes started by torchrun train together, each on images of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput, DoesNotFit, Missing
from pinchpoint.core.files import check_folder, make_folder
from pinchpoint.systems.common.budgets import BudgetChoice, begin_budget, budget_of, refuse_both
from pinchpoint.systems.common.training import logs
from pinchpoint.systems.common.training.distributed import NEXT, Ranks, follow, join_ranks, lead
from pinchpoint.systems.common.training.optimizer import count_parameters
from pinchpoint.systems.common.training.precision import check_precision
from pinchpoint.systems.common.training.records import TrainingRecord, shared_fields
from pinchpoint.systems.common.training.runs import CONFIG, at_data, data_folder
from pinchpoint.systems.common.training.torch_loop import take_steps
from pinchpoint.systems.common.training.training_loop import Outcome, Progress, Report, keep_run_on_stop
from pinchpoint.systems.radiance.data.images import Images
from pinchpoint.systems.radiance.evaluate import measure_kernel_distance, sample_real
from pinchpoint.systems.radiance.metrics.features import Extractor, open_extractor
from pinchpoint.systems.radiance.orbit import VIEWS, codes_of, save_sheet, tile_images, views
from pinchpoint.systems.radiance.settings import Settings
from pinchpoint.systems.radiance.training.budget import beside_bytes, chunk_for
from pinchpoint.systems.radiance.training.runs import Run, begin, read_settings
from pinchpoint.systems.radiance.training.training_step import Stepper

SAMPLES = "samples"
_SHOWN = 4  # objects on a sheet of samples
_HEIGHT = 0.35  # v of the camera on those sheets


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """Result of `radiance train`.

    loss: the generator's; validation: kernel distance between generated and real images; chunk: rays.
    """

    kind: ClassVar[str] = "radiance-training"
    images: int  # training images
    skipped: tuple[str, ...] = ()  # files that could not be read
    critic_parameters: int = 0
    steps_per_s: float | None = None  # in this session
    samples: tuple[str, ...] = ()  # image sheets, relative to RUN

    def summary(self) -> list[tuple[str, str]]:
        side = self.settings["size"] * self.settings["superres"]
        trained_on = (
            "images",
            f"{self.images:,} of {side} x {side}"
            + (f" in {len(classes)} classes" if (classes := self.settings["model"].get("classes")) else "")
            + (f"; {len(self.skipped)} skipped" if self.skipped else ""),
        )
        rows = self.rows(
            trained_on, loss="of the generator (mean of the last tenth)", error="", points="rays"
        )
        replacements = {
            "parameters": f"{self.parameters:,}, and {self.critic_parameters:,} in the discriminator"
        }
        if self.validation is not None:
            replacements["held back"] = (
                f"KD-efflite0 {self.validation:.1f} at step {self.best_step:,}, the best"
            )
        rows = [
            ("distance" if label == "held back" else label, replacements.get(label, value))
            for label, value in rows
        ]
        if self.steps_per_s:
            rows.append(("speed", f"{self.steps_per_s:.2f} steps per second"))
        if self.samples:
            rows.append(("pictures", f"{self.target}/{self.samples[-1]}"))
        return rows


def train(
    data: str | Path | None,
    output: str | Path,
    *,
    resume: bool = False,
    budget: str | int | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **choices: Any,
) -> Training:
    """Train on the images in `data`; the run is stored in `output`. choices: fields of `Settings`.

    data: None for a run that is resumed, which remembers its folder.
    budget: bytes, "8GiB" or a card's name. All rays are processed at once if that is predicted to fit, else
    in the largest chunks that fit, recomputed in the backward pass. Ctrl-C and SIGTERM write a checkpoint
    after the current step and are then raised. With several processes, all return the record that the first
    one wrote.
    """
    if budget is not None:
        budget_of(budget)  # checked before the images are read
        _check_alone(budget, choices)
    folder = data_folder(data, Path(output), Settings, resume=resume, system="radiance")
    stored = read_settings(Path(output)).device if resume and (Path(output) / CONFIG).exists() else "auto"
    device = resolve_device(choices.get("device", stored), backend("torch"))
    begin_budget(budget, device, resume=resume)
    with join_ranks(device) as ranks:
        tell: Progress = progress if progress is not None and ranks.leads else lambda report: None
        tell(Report("data", 0, 0, note=f"images of {folder}"))
        run, images = begin(Path(output), folder, resume=resume, choices=choices, ranks=ranks.world)
        run = at_data(run, folder, data)
        for line in images.skipped:
            tell(Report("skipped", 0, 0, note=line))
        check_precision(run.settings.precision, device)
        ranks.check_first(lambda: check_folder(run.folder))
        extract = _extractor(run, device) if ranks.leads else None
        with keep_run_on_stop(run, tell):
            run, choice = _choose_chunk(run, images, ranks, budget=budget, device=device, tell=tell)
            learner = _Learner(
                run, images, extract, device=device, ranks=ranks, is_limited=budget is not None
            )
        if not ranks.leads:
            return Training.from_json(follow(run, ranks, restore=learner.restore, take=learner.stepper.step))
        start_s = clock()
        first = 0 if (last := run.checkpoints.last()) is None else last.step

        def record(outcome: Outcome[logs.Row]) -> Training:
            steps, seconds = outcome.step - first, clock() - start_s
            return Training(
                **shared_fields(
                    run, outcome, data=folder, device=device, chunk=run.settings.chunk, prediction=choice
                ),
                parameters=count_parameters(learner.stepper.generator),
                critic_parameters=count_parameters(learner.stepper.critics),
                images=len(images),
                skipped=images.skipped,
                steps_per_s=steps / seconds if steps > 0 and seconds > 0 else None,
                samples=learner.sheets(),
            )

        how: dict[str, Any] = {"device": device, "record": record, "tell": tell, "clock": clock, "log": Log}
        return lead(ranks, lambda: take_steps(run, learner, complete_row=learner.complete_row, **how))


def _check_alone(budget: str | int, choices: Mapping[str, Any]) -> None:
    """Refuse a chunk or memory beside a budget, which chooses both: neither may be dropped silently."""
    refuse_both(budget, choices.get("chunk"))
    if choices.get("memory") == "none":
        raise BadInput(
            f"--budget {budget} cannot be combined with --set memory=none: a budget chooses the memory.",
            hint="Give only one of them; with --budget alone, memory is none if all rays fit at once.",
        )


def _extractor(run: Run, device: str) -> Extractor | None:
    if not run.settings.eval_images:
        return None
    try:
        return open_extractor(device=device)
    except Missing as error:
        raise Missing(
            error.what, hint=f"{error.hint.rstrip('.')}; or train without distances: --set eval_images=0"
        ) from error


def _choose_chunk(
    run: Run, images: Images, ranks: Ranks, *, budget: str | int | None, device: str, tell: Progress
) -> tuple[Run, BudgetChoice | None]:
    """The run with its chunk of rays; all processes agree on one, although each has its own memory in use."""
    settings, choice = run.settings, None
    if budget is not None and ranks.leads:
        how: dict[str, Any] = {
            "batch": min(settings.batch, settings.micro or settings.batch),
            "rays": settings.patch**2,
            "samples": settings.samples,
            "budget": budget,
            "device": device,
            "form": settings.form,
            "precision": settings.precision,
            "features": settings.superres > 1,
            "beside": beside_bytes(run.config, settings, images, device),
            "progress": lambda text: tell(Report("budget", 0, 0, note=text)),
        }
        try:
            choice = chunk_for(run.config, memory=settings.memory, **how)  # pyright: ignore[reportArgumentType]
        except DoesNotFit:
            if settings.memory != "none":
                raise
            settings = replace(settings, memory="checkpoint")
            choice = chunk_for(run.config, memory="checkpoint", **how)
        settings = replace(settings, chunk=choice.chunk)
    again = ranks.agree(int(settings.memory == "checkpoint"))
    chunk = ranks.agree(settings.chunk or 0) or None
    if budget is not None and again:
        settings = replace(settings, memory="checkpoint")
    return replace(run, settings=replace(settings, chunk=chunk)), choice


@dataclass(frozen=True)
class Row(logs.Row):
    """One step. loss: the generator's; validation: kernel distance to real images, times 1000."""

    loss_d: float = 0.0
    r1: float = 0.0  # its share of loss_d; 0 at steps without a penalty
    norm: float = 0.0  # norm of both players' gradients before clipping


_COLUMNS = tuple(f.name for f in fields(Row) if f.name not in logs.Log.columns)


class Log(logs.Log):
    columns = (*logs.Log.columns, *_COLUMNS)

    @classmethod
    def row_of(cls, line: Mapping[str, str]) -> Row:
        return _extend_row(logs.Log.row_of(line), {name: float(line[name]) for name in _COLUMNS})

    @classmethod
    def cells_of(cls, row: logs.Row) -> list[Any]:
        return [*logs.Log.cells_of(row), *(f"{getattr(row, name, 0.0):.8g}" for name in _COLUMNS)]


def _extend_row(row: logs.Row, extra: Mapping[str, float]) -> Row:
    values: dict[str, Any] = {**{f.name: getattr(row, f.name) for f in fields(logs.Row)}, **extra}
    return Row(**values)


class _Learner:
    """A stepper that also writes image sheets and measures distances."""

    def __init__(
        self,
        run: Run,
        images: Images,
        extract: Extractor | None,
        *,
        device: str,
        ranks: Ranks,
        is_limited: bool,
    ) -> None:
        self.folder, self.settings, self.config, self.ranks, self.device = (
            run.folder,
            run.settings,
            run.config,
            ranks,
            device,
        )
        self.stepper = Stepper(
            run.config, run.settings, images.to(device), device, ranks=ranks, is_limited=is_limited
        )
        self.extract = extract
        self.real = (
            None
            if extract is None
            else extract(sample_real(images, run.settings.eval_images, seed=run.settings.seed))
        )
        self.validates = extract is not None
        self._unread: dict[int, Tensor] = {}

    def step(self, number: int) -> Tensor:
        self.ranks.agree(NEXT)
        losses = self.stepper.step(number)
        self._unread[number] = losses
        if number % self.settings.sample_every == 0 or number == self.settings.steps:
            self.picture(number)
        return losses[:2]

    def complete_row(self, row: logs.Row) -> Row:
        """The log's row with the columns only this system has."""
        _, norm, loss_d, r1 = self._unread.pop(row.step).tolist()
        return _extend_row(row, {"loss_d": loss_d, "r1": r1, "norm": norm})

    def picture(self, number: int) -> None:
        """Write a sheet with one row of views per object; the objects are the same on every sheet."""
        codes = codes_of(self.config, _SHOWN, seed=self.settings.seed, device=self.device)
        height = min(max(_HEIGHT, self.settings.v_low), self.settings.v_high)
        rows = [
            views(self.stepper.averaged_generator(), codes, at / VIEWS, height).best.cpu()
            for at in range(VIEWS)
        ]
        sheet = tile_images(torch.stack(rows, dim=1).flatten(0, 1), columns=VIEWS)
        save_sheet(make_folder(self.folder / SAMPLES) / f"step-{number:08d}.png", sheet)

    def sheets(self) -> tuple[str, ...]:
        return tuple(f"{SAMPLES}/{file.name}" for file in sorted((self.folder / SAMPLES).glob("step-*.png")))

    def validate(self) -> float:
        assert self.extract is not None and self.real is not None
        count = self.settings.eval_images
        return measure_kernel_distance(
            self.stepper.averaged_generator(), self.config, self.real, self.extract, count=count
        )

    def state(self) -> dict[str, Any]:
        return self.stepper.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.stepper.restore(state)
