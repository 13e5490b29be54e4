"""Trainers and launchers of other packages, as one process of several."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from pinchpoint.forecasting import launch_command
from pinchpoint.forecasting.launch_command import Launch
from pinchpoint.forecasting.predict import predict

pytestmark = pytest.mark.usefixtures("quick_workers")
LAYER = 1024 * 1024 * 4
LIGHTNING = """
import pytorch_lightning as lightning
import torch
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)))

    def training_step(self, batch, index):
        assert batch[0].shape == (32, 1024), batch[0].shape
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.TensorDataset(torch.randn(4096, 1024))
trainer = lightning.Trainer(
    accelerator="gpu", devices=DEVICES, num_nodes=2, strategy=STRATEGY, max_steps=3, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=32))
"""


def write_lightning(strategy: str) -> None:
    pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    text = LIGHTNING.replace("STRATEGY", strategy).replace("DEVICES", "4")
    Path("train.py").write_text(text, encoding="utf-8")


def test_lightning_runs_as_the_asked_rank_and_keeps_the_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lightning("DDPStrategy()")
    forecast = predict("train.py", world_size=8, rank=5, local_world_size=4)
    assert (forecast.rank, forecast.world_size) == (5, 8)
    # Weights, gradients, buckets, two moments, and the square roots of the foreach step.
    assert forecast.peak_allocated_bytes - forecast.workspace_bytes == pytest.approx(6 * 8 * LAYER, rel=0.02)


def test_a_trainer_of_lightning_gives_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lightning("DDPStrategy()")
    forecast = predict("train.py")
    assert (forecast.rank, forecast.world_size) == (0, 8)
    assert not forecast.reasons  # Lightning asks DistributedDataParallel about itself at the end
    assert any("the Trainer asks for 8 processes" in note for note in forecast.notes)


def test_accelerate_shards_as_its_launcher_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import torch\n"
        "from accelerate import Accelerator\n"
        "accelerator = Accelerator()\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)))\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model, optimizer = accelerator.prepare(model, optimizer)\n"
        "for _ in range(3):\n"
        "    loss = model(torch.ones(8, 1024, device=accelerator.device)).mean()\n"
        "    accelerator.backward(loss)\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
        encoding="utf-8",
    )
    # What accelerate sets for a config file with FSDP2 and a wrap policy by size.
    variables = {
        "ACCELERATE_USE_FSDP": "true",
        "ACCELERATE_MIXED_PRECISION": "no",
        "FSDP_VERSION": "2",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_OFFLOAD_PARAMS": "false",
        "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
        "FSDP_MIN_NUM_PARAMS": "1000",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_SYNC_MODULE_STATES": "true",
    }
    launch = Launch("train.py", (), 4, 4, variables)
    monkeypatch.setattr("pinchpoint.forecasting.predict.read_launch", lambda *_, **__: launch)
    forecast = predict("accelerate launch --config_file fsdp.yaml train.py")
    assert (forecast.rank, forecast.world_size) == (0, 4)
    assert forecast.breakdown["weights"] == pytest.approx(8 * LAYER / 4, rel=0.01)
    assert launch_command.is_launch("accelerate launch train.py")


def test_deepspeed_takes_its_steps_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that has the names of DeepSpeed, and checks gradients as its optimizers do."""
    if find_spec("deepspeed") is not None:
        pytest.skip("deepspeed is installed")
    folder = tmp_path / "site-packages" / "deepspeed" / "runtime"
    folder.mkdir(parents=True)
    for path in (folder.parent / "__init__.py", folder / "__init__.py"):
        path.write_text("", encoding="utf-8")
    (folder / "utils.py").write_text(
        "import torch\n"
        "def is_invalid_grad_norm(norm):\n"
        "    return bool(torch.isnan(norm).any())\n"
        "class CheckOverflow:\n"
        "    def has_overflow(self, gradients):\n"
        "        return bool(sum(torch.isinf(g).any() for g in gradients).item())\n",
        encoding="utf-8",
    )
    (folder / "engine.py").write_text("class DeepSpeedEngine:\n    pass\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(
        "import sys, torch\n"
        f"sys.path.insert(0, {str(folder.parents[1])!r})\n"
        "from deepspeed.runtime.engine import DeepSpeedEngine\n"
        "from deepspeed.runtime.utils import CheckOverflow, is_invalid_grad_norm\n"
        "engine = DeepSpeedEngine()\n"
        "layer = torch.nn.Linear(1024, 1024, bias=False).cuda()\n"
        "optimizer = torch.optim.AdamW(layer.parameters())\n"
        "for _ in range(3):\n"
        "    layer(torch.ones(8, 1024, device='cuda')).mean().backward()\n"
        "    gradients = [layer.weight.grad]\n"
        "    if not CheckOverflow().has_overflow(gradients) and not is_invalid_grad_norm(gradients[0]):\n"
        "        optimizer.step()\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    forecast = predict("train.py")
    assert forecast.breakdown["optimizer"] >= 2 * LAYER
    assert [reason for reason in forecast.reasons if "train.py:5" in reason and "DeepSpeed" in reason]
    assert set(forecast.fits.values()) <= {None, False}
