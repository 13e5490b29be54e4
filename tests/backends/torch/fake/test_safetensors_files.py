"""safetensors on the simulated device: what a run saves, it loads again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors")

import safetensors
import safetensors.torch as functions


class Tied(nn.Module):
    """Two ends that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("files", [True, False])
def test_a_saved_file_is_loaded_with_its_names_shapes_and_values(
    observer: Any, tmp_path: Path, files: bool
) -> None:
    observer.progress.files = files
    path = tmp_path / "model.safetensors"
    tensors = {"weight": torch.zeros(2000, 1000, device="cuda"), "scale": torch.arange(3.0)}
    functions.save_file(tensors, path, metadata={"format": "pt"})
    before = observer.ledger.live_bytes()
    loaded = functions.load_file(path)
    assert loaded["weight"].shape == (2000, 1000) and not loaded["weight"].is_cuda
    assert observer.ledger.live_bytes() == before
    assert functions.load_file(path, device="cuda")["scale"].is_cuda
    with safetensors.safe_open(path, framework="pt", device="cuda") as file:
        assert file.keys() == ["scale", "weight"] and file.metadata() == {"format": "pt"}
        part = file.get_slice("weight")
        assert (part.get_shape(), part.get_dtype()) == ([2000, 1000], "F32")
        assert observer.ledger.live_bytes() == before  # nothing is read yet
        weight = part[...]
        assert weight.is_cuda and observer.ledger.live_bytes() == before + 4 * 2000 * 1000
        assert file.get_tensor("scale").tolist() == [0.0, 1.0, 2.0]
    assert functions.load(functions.save(tensors))["scale"].tolist() == [0.0, 1.0, 2.0]


def test_a_saved_model_is_loaded_into_a_model(observer: Any, tmp_path: Path) -> None:
    path, net = tmp_path / "model.safetensors", Tied().cuda()
    functions.save_model(net, str(path))
    assert functions.load_model(net, path) == (set(), [])
    with pytest.raises(RuntimeError, match=r"embed\.weight"):
        functions.load_model(nn.Linear(4, 4), path)


def test_transformers_loads_in_one_thread(observer: Any) -> None:
    assert os.environ["HF_DEACTIVATE_ASYNC_LOAD"] == "1"


def test_a_real_file_is_read_as_usual(simulate: Any, tmp_path: Path) -> None:
    path, net = tmp_path / "model.safetensors", Tied()
    functions.save_model(net, str(path))
    with simulate():
        with safetensors.safe_open(path, framework="pt") as file:
            names = list(file.keys())
        assert len(names) == 1 and torch.equal(functions.load_file(path)[names[0]], net.embed.weight)
        assert functions.load_model(net.cuda(), path, device="cuda") == (set(), [])
