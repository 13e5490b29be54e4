"""Training: a stopped and resumed run equals an uninterrupted one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")
PIL = pytest.importorskip("PIL.Image", reason="image files are pillow's")

from pinchpoint.backends.torch.measurement import account  # noqa: E402
from pinchpoint.core.errors import BadInput, Diverged, DoesNotFit, TargetFailed  # noqa: E402
from pinchpoint.systems.common.training.checkpoints import Checkpoints  # noqa: E402
from pinchpoint.systems.common.training.training_loop import Report  # noqa: E402
from pinchpoint.systems.radiance import train as training  # noqa: E402
from pinchpoint.systems.radiance.data.images import Images, open_images  # noqa: E402
from pinchpoint.systems.radiance.explain.legacy import LegacySuperRes  # noqa: E402
from pinchpoint.systems.radiance.export.mesh import export_mesh  # noqa: E402
from pinchpoint.systems.radiance.export.pictures import draw_grid, render_views  # noqa: E402
from pinchpoint.systems.radiance.metrics import features  # noqa: E402
from pinchpoint.systems.radiance.model import discriminator  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.objective import GeneratedImages, Generator, whole_images  # noqa: E402
from pinchpoint.systems.radiance.orbit import orbit  # noqa: E402
from pinchpoint.systems.radiance.rendering.render import Codes  # noqa: E402
from pinchpoint.systems.radiance.settings import Settings  # noqa: E402
from pinchpoint.systems.radiance.train import Log, Row, train  # noqa: E402
from pinchpoint.systems.radiance.training import budget  # noqa: E402
from pinchpoint.systems.radiance.training.runs import fingerprint, load_trained  # noqa: E402
from pinchpoint.systems.radiance.training.training_step import Stepper  # noqa: E402

STEPS = 4
CHOICES: dict[str, Any] = {
    "preset": "tiny",
    "steps": STEPS,
    "samples": 4,
    "batch": 3,
    "micro": 2,
    "superres": 2,
    "critic_width": 4,
    "sr_width": 4,
    "eval_images": 0,
    "checkpoint_every": 2,
    "sample_every": 2,
    "device": "cpu",
}
SMALLER = {**CHOICES, "superres": 1, "size": 32}  # one discriminator, and no super-resolution


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("radiance") / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(5):
        PIL.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("radiance") / "whole"
    train(data, folder, **CHOICES)
    return folder


@pytest.fixture(autouse=True)
def _few_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """One view per object on the sheets of each test's own runs; the run `whole` has the full sheets."""
    monkeypatch.setattr(training, "VIEWS", 1)


@pytest.fixture
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """One power iteration in place of 15, for tests that count bytes: each allocates the same bytes."""
    monkeypatch.setattr(discriminator, "_WARM", 1)


def test_a_run_on_subfolders_has_their_classes_and_another_sorting_is_other_data(
    data: Path, tmp_path: Path
) -> None:
    folder, run = tmp_path / "photos", tmp_path / "run"
    for name, numbers in (("bus", "012"), ("car", "34")):
        (folder / name).mkdir(parents=True)
        for number in numbers:
            shutil.copy(data / f"{number}.png", folder / name)
    labelled = {**SMALLER, "steps": 1, "label_weight": 1.0}
    record = train(folder, run, **labelled)
    config = load_trained(run).config
    assert config.classes == ("bus", "car") and config.class_images == (3, 2)
    assert dict(record.summary())["images"] == "5 of 32 x 32 in 2 classes"
    for show, name in (
        (orbit, "cars.gif"),
        (render_views, "car.png"),
        (draw_grid, "grid.png"),
        (export_mesh, "car.glb"),
    ):
        with pytest.raises(BadInput, match="There is no class 'boat'"):
            show(run, tmp_path / name, only="boat", device="cpu")
    assert train(folder, run, resume=True, device="cpu").step == 1
    (folder / "bus" / "2.png").rename(folder / "car" / "2.png")
    with pytest.raises(BadInput, match="another dataset"):
        train(folder, run, resume=True, device="cpu")
    assert load_trained(run).settings.data != fingerprint(open_images(folder, size=32)), "classes count"


def test_labels_that_images_do_not_have_are_refused(data: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"label_weight": 1.0}, "have no classes"),
        ({"label_weight": 1.0, "view_sectors": 8}, "cameras of the images .* are unknown"),
        ({"view_sectors": 8}, "has no effect without a label weight"),
    ):
        with pytest.raises(BadInput, match=message):
            train(data, tmp_path / "run", **{**SMALLER, **changes})
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize(
    ("chunk", "changes"),
    [
        (1024, {"bound": 1.0}),
        (2048, {"optimizer": "rmsprop", "sr_pairs": 0.0, "label_weight": 1.0, "view_sectors": 72}),
    ],
)
def test_a_budget_counts_all_memory_of_two_steps(chunk: int, changes: dict[str, Any]) -> None:
    """The prediction for the field and everything else is compared with the tensors of real steps."""
    config = FieldConfig.preset("tiny")
    settings = Settings(
        size=32, superres=2, samples=8, batch=4, sr_width=16, critic_width=16, memory="checkpoint", steps=9
    )
    settings = replace(settings, chunk=chunk, model=json.loads(config.to_json()), **changes)
    side = settings.size * settings.superres
    images = Images("none", torch.zeros(4, side, side, 3, dtype=torch.uint8), turns=torch.zeros(4))
    field = {
        "config": config.to_json(),
        "batch": "4",
        "samples": "8",
        "form": settings.form,
        "precision": settings.precision,
        "features": "yes" if settings.superres > 1 else "no",
    }

    def steps() -> None:
        result = Stepper(config, settings, images, "cpu")
        result.step(1)
        result.step(2)

    def alone() -> None:
        case = budget.build(
            4 * 32**2, device="cpu", mode="train", variant="checkpoint", seed=0, chunk=chunk, settings=field
        )
        case.step()
        case.step()

    value, of_field = account(steps), account(alone)
    assert value is not None and of_field is not None
    predicted = of_field + budget.beside_bytes(config, settings, images, "cpu")(chunk) - budget.LIBRARIES
    assert value <= predicted <= 1.3 * value


@pytest.mark.usefixtures("few_iterations")
def test_on_a_gpu_a_budget_counts_images_and_memory_that_graphs_cannot_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = FieldConfig.preset("tiny")
    settings = Settings(
        size=32, superres=2, samples=8, batch=2, sr_width=8, critic_width=8, steps=9, eval_images=0
    )
    images = Images("none", torch.zeros(4, 64, 64, 3, dtype=torch.uint8))
    weights = sum(
        parameter.numel() for parameter in Stepper(config, settings, images, "cpu").critics.parameters()
    )
    monkeypatch.setattr(budget, "_of_steps", lambda *_: 0)  # above
    monkeypatch.setattr(budget, "IMAGES_PER_BATCH", 2)
    monkeypatch.setattr(features, "_TOGETHER", 2)
    count, counts = budget._of_pictures, {}

    def once(config: FieldConfig, settings: Settings) -> int:
        """The bytes of whole images, which of the settings below depend on the chunk alone."""
        if settings.chunk not in counts:
            counts[settings.chunk] = count(config, settings)
        return counts[settings.chunk]

    monkeypatch.setattr(budget, "_of_pictures", once)

    def more(**changes: Any) -> Callable[[int | None], int]:
        return budget.beside_bytes(config, replace(settings, **changes), images, "cuda")

    assert images.pixels.numel() == more(graphs=False)(None) == more(micro=1)(None), "without CUDA graphs"
    plain_of, pictures = more(), account(lambda: _shown(config, settings))
    plain = plain_of(None)
    assert pictures is not None and plain > images.pixels.numel() + pictures
    assert plain_of(512) < plain, "whole images use no more points at a time than training chunks"
    assert more(r1_every=3)(None) > plain + 4 * weights, (
        "a turn that is recorded later runs in addition to the other graphs"
    )
    assert more(r1_every=3, r1=0.0)(None) == plain
    assert more(eval_images=32)(None) > plain + 4 * 3_000_000, "the network that measures distances"
    several = budget.beside_bytes(config, replace(settings, ranks=3), images, "cpu")(None)
    assert several > budget.LIBRARIES, "random numbers drawn for all processes"


def _shown(config: FieldConfig, settings: Settings) -> Any:
    generator = Generator(config, settings).requires_grad_(False)
    return whole_images(
        generator, Codes(torch.zeros(1, config.z_shape), torch.zeros(1, config.z_app)), *torch.zeros(2, 1)
    )


def at_step(number: int, act: Callable[[], None]) -> Callable[[Report], None]:
    """A callback that acts once, after that step."""

    def watch(report: Report) -> None:
        if report.stage == "train" and report.done == number:
            act()

    return watch


def last_state(run: Path) -> dict[str, Any]:
    result = Checkpoints(run / "checkpoints")
    entry = result.last()
    assert entry is not None
    return result.load(entry)


def same(one: Any, other: Any, where: str = "state") -> None:
    """Assert that all tensors and numbers are identical, except times."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert set(one) == set(other), where
        for key in one:
            if key != "seconds":
                same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        for at, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}[{at}]")
    else:
        assert one == other, where


@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_run_stopped_by_a_signal_and_resumed_equals_an_uninterrupted_one(
    data: Path, tmp_path: Path, whole: Path, number: int, ends: type[BaseException]
) -> None:
    run = tmp_path / "run"
    with pytest.raises(ends):
        train(data, run, progress=at_step(3, lambda: os.kill(os.getpid(), number)), **CHOICES)
    assert last_state(run)["step"] == 3
    torch.rand(17)  # other random draws in between
    result = train(data, run, resume=True)
    assert result.step == STEPS and result.complete
    same(last_state(whole), last_state(run))
    assert [row.loss for row in Log.read(run / "log.csv")] == [
        row.loss for row in Log.read(whole / "log.csv")
    ]


def test_log_record_and_sheets_describe_the_run(data: Path, whole: Path) -> None:
    result = train(data, whole, resume=True)  # the run is complete: nothing more is trained
    rows = [row for row in Log.read(whole / "log.csv") if isinstance(row, Row)]
    assert [row.step for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert np.isfinite([row.loss, row.loss_d, row.r1, row.norm]).all()
        assert 0 < row.r1 < row.loss_d and row.norm > 0
    assert result.images == 5 and result.parameters > 0 < result.critic_parameters
    assert result.samples == ("samples/step-00000002.png", "samples/step-00000004.png")
    with PIL.open(whole / result.samples[-1]) as sheet:
        assert sheet.size == (8 * 66 - 2, 4 * 66 - 2), "eight views of four objects, enlarged"
    settings = dict(result.summary())
    assert settings["images"] == "5 of 64 x 64" and "in the discriminator" in settings["parameters"]


def test_the_trained_generator_has_the_averaged_weights(whole: Path) -> None:
    value = load_trained(whole)
    state = last_state(whole)
    assert value.step == STEPS
    same(dict(value.model.state_dict()), state["ema"])
    assert any(not torch.equal(state["ema"][name], state["generator"][name]) for name in state["ema"])


def test_a_checkpoint_of_another_configuration_is_refused(data: Path, tmp_path: Path, whole: Path) -> None:
    run = tmp_path / "run"
    train(data, run, **{**CHOICES, "steps": 2, "r1": 2.0})
    other = Checkpoints(run / "checkpoints")
    Checkpoints(run / "checkpoints").save(last_state(whole), step=STEPS)
    with pytest.raises(BadInput, match=r"was written with other settings: .*r1 \(was 1.0, is 2.0\)"):
        train(data, run, resume=True, steps=8)
    assert other.last() is not None


def test_a_nan_loss_ends_the_run_and_names_the_last_good_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Stepper.step

    def broken(self: Stepper, number: int) -> Any:
        value = step(self, number)
        return value * torch.nan if number == 4 else value

    monkeypatch.setattr(Stepper, "step", broken)
    with pytest.raises(
        Diverged, match=r"The loss is not finite at step 4\. The last good checkpoint is step-00000002\.pt"
    ) as excinfo:
        train(data, tmp_path / "run", **CHOICES)
    assert "--lr " in excinfo.value.hint and last_state(tmp_path / "run")["step"] == 2


def test_a_generator_without_gradients_is_refused_at_the_first_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The super-resolution of the GRAF memory guide replaces ours; the run ends before it wastes an hour."""
    forward = Generator.forward

    def original(self: Generator, request: Any, **how: Any) -> GeneratedImages:
        images = forward(self, request, **how)
        return images._replace(low=self.legacy(images.low, torch.zeros(len(request), dtype=torch.long)))  # type: ignore[operator]

    begun = Generator.__init__

    def with_legacy(self: Generator, *inputs: Any) -> None:
        begun(self, *inputs)
        self.legacy = LegacySuperRes(32, width=4, views=1, up=1)

    monkeypatch.setattr(Generator, "forward", original)
    monkeypatch.setattr(Generator, "__init__", with_legacy)
    with pytest.raises(
        TargetFailed, match=r"parameters of the generator do not get a gradient: field\."
    ) as excinfo:
        train(data, tmp_path / "run", **SMALLER)
    assert "no_grad" in excinfo.value.hint


@pytest.mark.usefixtures("remembered_peaks", "few_iterations")
def test_a_budget_chooses_chunks_or_is_refused_before_a_run_is_created(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match=r"the budget is 1\.00 MiB") as excinfo:
        train(data, tmp_path / "run", budget="1MiB", **SMALLER, memory="checkpoint")
    assert "--budget" in excinfo.value.hint and not (tmp_path / "run").exists()
    with pytest.raises(BadInput, match="no card 'much'"):
        train(tmp_path / "not_read", tmp_path / "run", budget="much")
    result = train(data, tmp_path / "run", budget="64GiB", **{**SMALLER, "steps": 1})
    assert result.chunk is None and (result.predicted_bytes or 0) < (result.budget_bytes or 0) == 64 * 2**30
    assert result.settings["memory"] == "none"


@pytest.mark.usefixtures("remembered_peaks", "few_iterations")
def test_a_tight_budget_trains_in_smaller_chunks_with_the_same_result(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("radiance.training.budget", "common.budgets"):  # what is left is the step's own
        monkeypatch.setattr(f"pinchpoint.systems.{module}.resident_bytes", lambda: 0)
    monkeypatch.setattr(budget, "LIBRARIES", 0)
    choices, rays = {**SMALLER, "steps": 1}, 2 * 32 * 32  # rays of the images processed together
    plenty = train(data, tmp_path / "plenty", budget="64GiB", **choices)
    assert plenty.chunk is None and plenty.predicted_bytes is not None
    limit = plenty.predicted_bytes * 3 // 4  # too little for all rays at once, even with checkpoints
    result = train(data, tmp_path / "tight", budget=limit, **choices)
    assert result.settings["memory"] == "checkpoint" and result.chunk is not None and 0 < result.chunk < rays
    assert (result.predicted_bytes or 0) <= limit == result.budget_bytes
    assert result.loss == pytest.approx(plenty.loss, rel=1e-5)


def test_distances_are_measured_during_training_and_the_best_checkpoint_is_kept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = iter([30.0, 10.0, 20.0])
    monkeypatch.setattr(training, "open_extractor", lambda device: lambda images: images.flatten(1)[:, :4])
    monkeypatch.setattr(training, "measure_kernel_distance", lambda *inputs, **how: next(value))
    result = train(data, tmp_path / "run", **{**CHOICES, "steps": 3, "eval_images": 4, "eval_every": 1})
    assert result.validation == 10.0 and result.best_step == 2
    assert dict(result.summary())["distance"] == "KD-efflite0 10.0 at step 2, the best"
    assert [row.validation for row in Log.read(tmp_path / "run" / "log.csv")] == [30.0, 10.0, 20.0]


# Two processes with the variables of torchrun, forked after the imports, which take longer than the runs.
WORKERS = """
import os, sys
import torch
from pinchpoint.systems.radiance import train as training
train, training.VIEWS = training.train, 1
torch.set_num_threads(1)
other = os.fork()
os.environ |= {"RANK": str(int(other == 0)), "LOCAL_RANK": str(int(other == 0)), "WORLD_SIZE": "2"}
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2] + ".store",
                                     rank=int(other == 0), world_size=2)  # once for both runs
choices = eval(sys.argv[3])
made = train(sys.argv[1], sys.argv[2], **choices)
assert made.complete and made.settings["ranks"] == 2, made
made = train(sys.argv[1], sys.argv[2], resume=True, steps=choices["steps"] + 1)
assert made.complete and made.step == choices["steps"] + 1, made
torch.distributed.destroy_process_group()
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


@pytest.mark.slow
def test_two_processes_take_the_same_steps_as_one_with_all_images(data: Path, tmp_path: Path) -> None:
    choices = {**SMALLER, "steps": 2, "batch": 2, "micro": None}
    done = subprocess.run(
        [sys.executable, "-c", WORKERS, str(data), str(tmp_path / "run"), repr(choices)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    train(data, tmp_path / "one", **{**choices, "batch": 4})
    together, alone = (Log.read(tmp_path / name / "log.csv") for name in ("run", "one"))
    assert [row.step for row in together] == [1, 2, 3]
    for two, one in zip(together[:2], alone, strict=True):
        assert two.loss == pytest.approx(one.loss, rel=1e-3)
        assert (
            isinstance(two, Row)
            and isinstance(one, Row)
            and two.loss_d == pytest.approx(one.loss_d, rel=1e-3)
        )
    with pytest.raises(BadInput, match=r"ranks \(was 2, is 1\)"):
        train(data, tmp_path / "run", resume=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32"])
def test_it_trains_on_a_gpu(data: Path, tmp_path: Path, precision: str) -> None:
    result = train(data, tmp_path / "run", **{**CHOICES, "device": "cuda", "precision": precision})
    assert result.complete and result.loss is not None and np.isfinite(result.loss)
