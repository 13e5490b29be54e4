"""Unmodified training scripts that use CUDA, predicted without a GPU and compared with counts done by hand.

The hand counts omit the 512-byte rounding and tensors below a megabyte, so they are compared within 1 %
(weights and optimizer state within 0.1 %). They also omit the buffers in which the GPU stages long sums, up
to 132 MiB for a bias gradient: the peaks counted here are larger than the memory at those moments. U is one
hidden activation of the classifier scripts, 65,536 x 2,048 floats; W is all weights of a script.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.predict import predict

SCRIPTS = Path(__file__).parents[2] / "scripts"
F32 = 4

U = 65_536 * 2_048 * F32
CLASSIFIER_W = (64 * 2_048 + 2_048 + 2_048 * 2_048 + 2_048 + 2_048 * 10 + 10) * F32
CLASSIFIER_INPUTS = 65_536 * 64 * F32 + 65_536 * 8  # images in fp32, labels in int64
LOGITS = 65_536 * 10 * F32

# Both ReLUs keep their output, h1 and h2. The peak is the second ReLU's backward: h1, h2, the incoming and
# the outgoing gradient; in addition the weights with two Adam moments, the batch, and small logits.
CLASSIFIER_PEAK = 4 * U + 3 * CLASSIFIER_W + CLASSIFIER_INPUTS + LOGITS

Predict = Callable[..., Forecast]
pytestmark = pytest.mark.usefixtures("quick_workers")


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder with its content."""
    matches: dict[str, bytes | None] = {}
    for root, folders, files in os.walk(folder):
        for name in folders:
            matches[os.path.join(root, name)] = None
        for name in files:
            matches[os.path.join(root, name)] = Path(root, name).read_bytes()
    return matches


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Predict a script from an empty folder, and assert that neither it nor the scripts' folder changed."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def predict_script(name: str, *args: str, **options: Any) -> Forecast:
        before = snapshot(SCRIPTS)
        try:
            return predict(str(SCRIPTS / name), args=args, **options)
        finally:
            assert snapshot(work) == {}
            assert snapshot(SCRIPTS) == before

    return predict_script


def line_of(script: str, code: str) -> int:
    lines = (SCRIPTS / script).read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if code in line]
    return number


def bytes_at(forecast: Forecast, script: str, code: str, phase: str) -> int:
    place = (script, line_of(script, code), phase)
    return sum(
        line.bytes for line in forecast.lines if (Path(line.file).name, line.line, line.phase) == place
    )


def without_workspace(forecast: Forecast) -> int:
    return forecast.peak_allocated_bytes - forecast.workspace_bytes


def check_whole(forecast: Forecast, script: str, *, mode: str = "train") -> None:
    """Check what must be true of the forecast of any script."""
    assert forecast.mode == mode
    assert forecast.size is None
    assert forecast.framework == "torch"
    assert forecast.target.endswith(script)
    assert sum(forecast.breakdown.values()) == forecast.peak_allocated_bytes
    assert forecast.breakdown["workspace"] == forecast.workspace_bytes
    assert forecast.peak_reserved_bytes is not None
    assert forecast.peak_allocated_bytes <= forecast.peak_reserved_bytes
    nccl_bytes = forecast.nccl_bytes or 0
    assert forecast.total_bytes == forecast.peak_reserved_bytes + forecast.context_bytes + nccl_bytes
    # The line with the most bytes is the user's own, not one inside a library.
    assert Path(forecast.lines[0].file).name == script


def check_classifier(forecast: Forecast, script: str) -> None:
    """Check a script that trains the classifier; the four scripts differ in code, not in memory."""
    check_whole(forecast, script)
    assert without_workspace(forecast) == pytest.approx(CLASSIFIER_PEAK, rel=0.01)
    assert forecast.breakdown["weights"] == pytest.approx(CLASSIFIER_W, rel=1e-3)
    assert forecast.breakdown["optimizer"] == pytest.approx(2 * CLASSIFIER_W, rel=1e-3)
    assert forecast.breakdown["inputs"] == pytest.approx(CLASSIFIER_INPUTS, rel=1e-3)
    assert forecast.breakdown["gradients"] < 1.01 * CLASSIFIER_W
    # The two lines of forward create h1 and h2. In backward the line after h2 creates the gradient of h2, and
    # the line of h2 passes it through its ReLU.
    assert bytes_at(forecast, script, "self.first(x)", "forward") == pytest.approx(U, rel=0.01)
    assert bytes_at(forecast, script, "self.second(x)", "forward") == pytest.approx(U, rel=0.01)
    assert bytes_at(forecast, script, "self.last(x)", "backward") == pytest.approx(U, rel=0.01)
    assert bytes_at(forecast, script, "self.second(x)", "backward") == pytest.approx(U, rel=0.01)
    assert forecast.lines[0].bytes == max(line.bytes for line in forecast.lines)


def test_a_plain_loop_peaks_in_the_second_backward_at_the_hand_count(run: Predict) -> None:
    forecast = run("plain_loop.py")
    check_classifier(forecast, "plain_loop.py")
    assert max(forecast.timeline, key=lambda event: event[1])[2] == "backward"
    result = {line.line: line.code.strip() for line in forecast.lines}
    assert result[line_of("plain_loop.py", "self.second(x)")] == "x = torch.relu(self.second(x))"
    assert bytes_at(forecast, "plain_loop.py", "optimizer.step()", "optimizer") == pytest.approx(
        2 * CLASSIFIER_W, rel=1e-3
    )
    assert bytes_at(forecast, "plain_loop.py", "Net().cuda()", "data") == pytest.approx(
        CLASSIFIER_W, rel=1e-3
    )
    assert bytes_at(forecast, "plain_loop.py", "x = x.cuda", "data") == 65_536 * 64 * F32


def test_a_script_gets_its_own_arguments(run: Predict) -> None:
    forecast = run("plain_loop.py", "--batch-size", "128", "--steps", "7")
    assert without_workspace(forecast) == pytest.approx(
        (CLASSIFIER_PEAK - 3 * CLASSIFIER_W) / 2 + 3 * CLASSIFIER_W, rel=0.01
    )


def test_a_script_that_takes_fewer_steps_than_requested_is_still_predicted(run: Predict) -> None:
    """One step: the moments appear only after the peak, in the optimizer."""
    forecast = run("plain_loop.py", "--steps", "1")
    assert without_workspace(forecast) == pytest.approx(CLASSIFIER_PEAK - 2 * CLASSIFIER_W, rel=0.01)


def test_fp16_with_a_scaler_keeps_half_size_activations_and_full_size_weights(run: Predict) -> None:
    forecast = run("amp_scaler.py")
    check_whole(forecast, "amp_scaler.py")
    # GELU and the linear layer after it each keep their input: z1, h1, z2, h2 in fp16. The peak is in the
    # last linear's backward (or the GELU's before it), with one more gradient: five halves of U.
    half_weights = CLASSIFIER_W / 2
    half_inputs = 65_536 * 64 * 2
    expected = 5 * U / 2 + 3 * CLASSIFIER_W + half_weights + CLASSIFIER_INPUTS + half_inputs + LOGITS
    assert without_workspace(forecast) == pytest.approx(expected, rel=0.01)
    assert forecast.breakdown["weights"] == pytest.approx(CLASSIFIER_W, rel=1e-3)
    assert forecast.breakdown["optimizer"] == pytest.approx(2 * CLASSIFIER_W, rel=1e-3)
    assert bytes_at(forecast, "amp_scaler.py", "F.cross_entropy(model(x), y)", "forward") >= 3 * U / 2


def test_accumulation_keeps_gradients_and_a_deep_copy_is_a_second_set_of_weights(run: Predict) -> None:
    forecast = run("accumulate_ema.py")
    check_whole(forecast, "accumulate_ema.py")
    weights = 8 * 4_096 * 4_096 * F32
    inputs = 4 * 128 * 4_096 * F32
    # In the optimizer step: weights, their average, gradients, two moments, and the foreach square roots.
    assert without_workspace(forecast) == pytest.approx(6 * weights + inputs, rel=0.01)
    assert forecast.breakdown["gradients"] == pytest.approx(weights, rel=1e-3)
    assert forecast.breakdown["optimizer"] == pytest.approx(2 * weights, rel=1e-3)
    assert max(forecast.timeline, key=lambda event: event[1])[2] == "optimizer"
    assert forecast.breakdown["weights"] == pytest.approx(2 * weights, rel=1e-3)
    assert bytes_at(forecast, "accumulate_ema.py", "copy.deepcopy(model)", "data") == pytest.approx(
        weights, rel=1e-3
    )


@pytest.mark.slow
def test_a_lightning_script_needs_what_the_plain_loop_needs(run: Predict) -> None:
    forecast = run("lightning_fit.py")
    check_classifier(forecast, "lightning_fit.py")
    assert without_workspace(forecast) == pytest.approx(CLASSIFIER_PEAK, rel=0.01)


def test_an_accelerate_script_needs_what_the_plain_loop_needs(run: Predict) -> None:
    forecast = run("accelerate_loop.py")
    check_classifier(forecast, "accelerate_loop.py")
    assert without_workspace(forecast) == pytest.approx(CLASSIFIER_PEAK, rel=0.01)


@pytest.mark.slow
def test_a_hugging_face_trainer_script_is_bounded_by_its_logits(run: Predict) -> None:
    forecast = run("hf_trainer.py")
    check_whole(forecast, "hf_trainer.py")
    tokens, width, vocabulary = 64 * 128, 256, 32_000
    logits = tokens * vocabulary * F32
    block = 12 * width * width + 13 * width
    weights = (
        vocabulary * width + 128 * width + 2 * block + 2 * width
    ) * F32  # the head is tied to the embedding
    # The embedding, 31.25 MiB, gets a block of 32 MiB: a remainder below 1 MiB is not split off.
    unsplit = 2**25 - vocabulary * width * F32
    assert forecast.breakdown["weights"] == pytest.approx(weights + unsplit, rel=1e-3)
    # Cross entropy keeps its log-softmax and creates two gradients of that size in backward; the rest is two
    # narrow layers, each with at most about forty (tokens, width) tensors.
    assert without_workspace(forecast) > 3 * logits + 3 * weights
    assert without_workspace(forecast) < 3 * logits + 4 * weights + 2 * 40 * tokens * width * F32 + logits / 2
    # The script has one line for all of this; what is inside it says more.
    inside = {part.module: part for line in forecast.lines for part in line.inside if line.phase == "forward"}
    assert inside["GPT2LMHeadModel"].file.startswith("transformers/loss/")
    assert inside["GPT2LMHeadModel"].bytes == pytest.approx(logits, rel=0.01)
    assert {"GPT2LMHeadModel.transformer.h.*.mlp.c_fc": 2}.items() <= {
        module["name"]: module["count"] for module in forecast.modules
    }.items()


def test_data_parallel_training_adds_its_gradient_buckets(run: Predict) -> None:
    forecast = run("ddp_torchrun.py", world_size=4)
    check_whole(forecast, "ddp_torchrun.py")
    assert "rank 0 of 4, without peers" in forecast.notes
    weights = 8 * 4_096 * 4_096 * F32
    # Weights, gradients, two moments, the foreach step's square roots; and the buckets, as large as the
    # gradients.
    assert without_workspace(forecast) == pytest.approx(6 * weights + 128 * 4_096 * F32, rel=0.02)


def test_a_sharded_script_keeps_its_part_of_the_weights(run: Predict) -> None:
    forecast = run("fsdp_torchrun.py", world_size=16, rank=9)
    assert (forecast.rank, forecast.world_size) == (9, 16)
    assert "rank 9 of 16, without peers" in forecast.notes
    layer = 4_096 * 4_096 * F32
    parts = forecast.breakdown
    assert parts["weights"] == 8 * layer / 16
    assert parts["optimizer"] == pytest.approx(2 * 8 * layer / 16, rel=0.001)
    # In the backward pass: two gathered layers with their flat copies, gradients of two, and little else.
    assert without_workspace(forecast) < 3 * 8 * layer / 16 + 8 * layer
    assert forecast.nccl_bytes and forecast.total_bytes == (
        (forecast.peak_reserved_bytes or 0) + forecast.context_bytes + forecast.nccl_bytes
    )


def test_the_worst_of_all_ranks_is_predicted(run: Predict) -> None:
    forecast = run("ddp_torchrun.py", world_size=2, rank="all")
    assert forecast.rank in (0, 1)
    assert any("needs most of the ranks that were run" in note for note in forecast.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 0}, "--world-size 0"),
        ({"world_size": 4, "rank": 4}, "no rank 4 among 4"),
        ({"world_size": 8, "local_world_size": 3}, "does not divide"),
        ({"rank": 1}, "without --world-size"),
    ],
)
def test_a_job_that_cannot_be_is_refused(run: Predict, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        run("ddp_torchrun.py", **options)


def test_a_script_that_torchrun_starts_needs_a_world_size(run: Predict) -> None:
    with pytest.raises(BadInput, match=r"starts a process group at .*ddp_torchrun\.py") as excinfo:
        run("ddp_torchrun.py")
    assert "--world-size N" in excinfo.value.hint


def test_the_name_of_a_class_in_a_script_does_not_make_it_parallel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import os, torch\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "assert int(os.environ.get('RANK', -1)) == -1\n"
        "model = torch.nn.Linear(1000, 1000).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.randn(10, 1000, device='cuda')).mean().backward()\n"
        "    optimizer.step()\n",
        encoding="utf-8",
    )
    assert not [note for note in predict("train.py").notes if "rank" in note]
    Path("train.py").write_text("import os\nrank = os.environ['RANK']\n", encoding="utf-8")
    with pytest.raises(TargetFailed, match=r"reads the variable RANK at .*train\.py:2") as excinfo:
        predict("train.py")
    assert "--world-size N" in excinfo.value.hint


def test_a_script_without_a_seed_has_the_same_forecast_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("infer.py").write_text(
        "import torch\nrows = 1_000 + int(1e6 * torch.rand(()))\n"
        "torch.nn.Linear(8, 8).cuda()(torch.ones(rows, 8, device='cuda'))\n",
        encoding="utf-8",
    )
    peaks = [predict("infer.py", seed=seed).peak_allocated_bytes for seed in (0, 1, 0)]
    assert peaks[0] == peaks[2] != peaks[1]


def test_an_inference_script_needs_the_input_and_output_of_one_layer(run: Predict) -> None:
    forecast = run("infer_only.py")
    check_whole(forecast, "infer_only.py", mode="infer")
    images = 65_536 * 64 * F32
    assert without_workspace(forecast) == pytest.approx(2 * U + CLASSIFIER_W + images, rel=0.01)
    assert forecast.breakdown["optimizer"] == forecast.breakdown["gradients"] == 0
    assert forecast.lines[0].line == line_of("infer_only.py", "answers.append")


def test_the_default_device_counts_as_the_gpu(run: Predict) -> None:
    forecast = run("default_device.py")
    check_classifier(forecast, "default_device.py")
    assert without_workspace(forecast) == pytest.approx(CLASSIFIER_PEAK, rel=0.01)


def test_a_compiled_model_passes_gradients_through_a_relu_in_place(run: Predict) -> None:
    """The peak is in the backward pass of the second layer: h1, h2 and one gradient."""
    forecast = run("compiled.py")
    check_whole(forecast, "compiled.py")
    most = 3 * U + 4 * CLASSIFIER_W + CLASSIFIER_INPUTS  # with the gradients, of which one layer's is missing
    assert without_workspace(forecast) == pytest.approx(most, rel=0.02)


def test_a_boolean_mask_gives_an_interval_that_contains_the_expected_count(run: Predict) -> None:
    forecast = run("masks.py")
    check_whole(forecast, "masks.py")
    entries, points = 100_000, 400_000  # uniform points, the mask keeps a quarter
    unit = entries * 512 * F32
    weights = (3 * 512 + 512 + 512 * 512 + 512 + 512 + 1) * F32
    expected = 4 * unit + 3 * weights + points * 3 * F32 + entries * 3 * F32
    assert without_workspace(forecast) == pytest.approx(expected, rel=0.03)
    assert forecast.low_bytes is not None
    assert forecast.high_bytes is not None
    assert forecast.low_bytes <= expected + forecast.workspace_bytes <= forecast.high_bytes
    assert forecast.high_bytes < 1.25 * forecast.low_bytes
    assert any("masks.py" in note for note in forecast.notes)


def test_a_script_without_data_dependent_counts_has_no_interval(run: Predict) -> None:
    forecast = run("default_device.py")
    assert forecast.low_bytes is None
    assert forecast.high_bytes is None


def test_a_script_that_never_steps_is_refused(run: Predict) -> None:
    with pytest.raises(TargetFailed, match="step") as refused:
        run("never_steps.py")
    assert refused.value.hint


def test_a_script_that_exits_early_is_refused_with_its_exit_code(run: Predict) -> None:
    with pytest.raises(TargetFailed, match=r"\b3\b") as refused:
        run("exits_early.py")
    assert refused.value.hint


def test_the_same_script_takes_steps_when_it_gets_its_arguments(run: Predict) -> None:
    assert run("exits_early.py", "--really").mode == "train"


def test_a_script_whose_file_is_missing_is_refused_with_the_name_of_the_file(run: Predict) -> None:
    with pytest.raises(TargetFailed, match=r"pretrained/weights\.pt"):
        run("needs_file.py")


def test_a_script_that_raises_is_refused_with_its_own_line(run: Predict) -> None:
    line = line_of("raises.py", "torch.randn(8, 17")
    with pytest.raises(TargetFailed, match=rf"raises\.py:{line}\b"):
        run("raises.py")


def test_a_script_that_writes_everywhere_changes_no_real_file(run: Predict, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "history.txt").write_text("an old run\n")
    (folder / "keep.txt").write_text("keep me")
    before = snapshot(folder)
    forecast = run("writes_everywhere.py", str(folder))
    check_whole(forecast, "writes_everywhere.py")
    assert snapshot(folder) == before
    # Input and output of the layer are kept. The peak is the square's backward, gradient * (2 * y**1): the
    # gradient, y**1, its double and the product are alive until the expression ends.
    unit, weights = 4_096 * 1_024 * F32, (1_024 * 1_024 + 1_024) * F32
    assert without_workspace(forecast) == pytest.approx(6 * unit + weights, rel=0.01)


STEPS = """
import torch
from torch import nn
{imports}
net = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.ones(8, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_a_module_runs_with_its_package_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import sys\nassert sys.modules['__main__'].__package__ == __name__\n"
    )
    (package / "sizes.py").write_text("WIDTH = 512\n")
    (package / "train.py").write_text(
        "import sys\nassert sys.argv[1:] == ['--lr', '3'] and __name__ == '__main__'\n"
        + STEPS.format(imports="from .sizes import WIDTH")
    )
    (package / "__main__.py").write_text("from package import train")
    monkeypatch.chdir(tmp_path)
    forecast = predict("-m package.train", args=["--lr", "3"])
    assert forecast.breakdown["weights"] == 512 * 512 * F32
    assert (forecast.lines[0].file, forecast.target) == ("package/train.py", "-m package.train")
    with pytest.raises(BadInput, match=r"no module package\.test that python -m could run"):
        predict("-m package.test")


def test_a_notebook_runs_in_its_folder_and_its_lines_are_those_of_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sizes.py").write_text("WIDTH = 512\n")
    sources = ["%matplotlib inline\nfrom sizes import WIDTH", STEPS.format(imports="")]
    cells = [{"cell_type": "code", "source": source} for source in sources]
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    forecast = predict("../train.ipynb")
    assert forecast.breakdown["weights"] == 512 * 512 * F32
    weights = max((line for line in forecast.lines if line.phase == "data"), key=lambda line: line.bytes)
    assert (weights.file, weights.line) == (f"{tmp_path}/train.ipynb[2]", 5)
    assert weights.code == "net = nn.Linear(WIDTH, WIDTH, bias=False).cuda()"
    assert "skipped in the notebook: cell 1: %matplotlib inline" in forecast.notes


def test_a_process_that_c_code_ends_is_explained_by_its_last_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import ctypes, torch\nprint('libgomp: no thread', flush=True)\nctypes.CDLL(None)._exit(1)\n",
        encoding="utf-8",
    )
    with pytest.raises(
        TargetFailed, match=r"ended with exit code 1\. Its last output is: libgomp: no thread"
    ):
        predict("train.py")


def test_lines_are_relative_to_the_folder_also_if_the_script_writes_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import torch\n"
        "open('log.txt', 'w').write('started')\n"
        "net = torch.nn.Linear(100, 100).cuda()\n"
        "net(torch.ones(8, 100, device='cuda')).sum().backward()\n",
        encoding="utf-8",
    )
    forecast = predict("train.py")
    assert {line.file for line in forecast.lines} == {"train.py"}
    assert not Path("log.txt").exists()
