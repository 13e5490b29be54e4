"""Saving and loading on the simulated device: no memory is held, and tensors return to their device."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pinchpoint.core.errors import CannotFake

MIB = 2**20


class Net(nn.Module):
    """Two ends that share one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mean", torch.zeros(256))


BYTES = 4 * (1000 * 64 + 256)


def saved_on(monkeypatch: pytest.MonkeyPatch, obj: Any, path: Path, tag: str = "cuda:0") -> Path:
    """A file as a machine with that device would have written it."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: tag)
        torch.save(obj, path)
    return path


def test_functions_of_cuda_work_under_their_names_in_submodules_too(observer: Any) -> None:
    tensor = torch.zeros(MIB, device="cuda")
    assert torch.cuda.memory.memory_allocated() == tensor.nbytes
    torch.cuda.memory.reset_peak_memory_stats()
    state = torch.cuda.random.get_rng_state()  # the Trainer of transformers saves it with a checkpoint
    torch.cuda.random.set_rng_state(state)
    assert (state.device.type, state.dtype, state.shape) == ("cpu", torch.uint8, (16,))


def test_saving_writes_nothing_and_is_noted(observer: Any, tmp_path: Path) -> None:
    torch.save(nn.Linear(4, 4).cuda().state_dict(), tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []
    assert any("not written" in note for note in observer.ledger.observation.notes)


@pytest.mark.parametrize("files", [True, False])
def test_a_saved_object_takes_no_memory_and_loads_unchanged(
    observer: Any, tmp_path: Path, files: bool
) -> None:
    observer.progress.files = files
    net, path = Net().cuda(), tmp_path / "model.pt"
    optimizer = torch.optim.Adam(net.parameters())
    net.head(net.embed(torch.zeros(3, dtype=torch.int64, device="cuda"))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(
        {
            "net": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": 3,
            "best": torch.tensor([0.5]),
        },
        path,
    )
    names, shapes = list(net.state_dict()), [tuple(t.shape) for t in net.state_dict().values()]
    del net, optimizer
    assert observer.ledger.live_bytes() == 0
    loaded = torch.load(path)
    assert loaded["epoch"] == 3 and loaded["best"].tolist() == [0.5]
    assert list(loaded["net"]) == names and [tuple(t.shape) for t in loaded["net"].values()] == shapes
    assert all(t.is_cuda for t in loaded["net"].values())
    assert loaded["net"]["head.weight"].untyped_storage() == loaded["net"]["embed.weight"].untyped_storage()
    assert observer.ledger.live_bytes() == BYTES + 2 * 4 * 1000 * 64  # and Adam's two moments
    again = Net().cuda()
    again.load_state_dict(loaded["net"])
    torch.optim.Adam(again.parameters()).load_state_dict(loaded["optimizer"])
    host = torch.load(path, map_location="cpu")
    assert not any(t.is_cuda for t in host["net"].values())


def test_a_whole_module_saved_to_a_buffer_comes_back_from_it(observer: Any) -> None:
    buffer = io.BytesIO()
    net = Net().cuda()
    torch.save(net, buffer)
    torch.save(torch.arange(5.0), buffer)
    del net
    assert observer.ledger.live_bytes() == 0
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert (
        isinstance(again, Net)
        and again.head.weight is again.embed.weight
        and isinstance(again.head.weight, nn.Parameter)
    )
    assert again.head.weight.requires_grad and again.mean.is_cuda and observer.ledger.live_bytes() == BYTES
    assert torch.load(buffer).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    buffer.seek(0)
    with pytest.raises(EOFError):
        torch.load(io.BytesIO())


def test_values_are_those_at_the_time_of_saving(observer: Any) -> None:
    x, buffer = torch.arange(4.0).cuda(), io.BytesIO()
    torch.save((x, x[1:3], x), buffer)
    x += 1
    buffer.seek(0)
    whole, part, same = torch.load(buffer)
    assert whole.tolist() == [0.0, 1.0, 2.0, 3.0] and part.tolist() == [1.0, 2.0] and same is whole
    assert part.untyped_storage() == whole.untyped_storage()
    part.zero_()
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")[1].tolist() == [1.0, 2.0]


def test_what_cannot_be_pickled_may_be_saved_but_not_loaded(observer: Any, tmp_path: Path) -> None:
    torch.save({"loss": lambda x: x, "weight": torch.ones(4, device="cuda")}, tmp_path / "model.pt")
    assert observer.ledger.live_bytes() == 0
    with pytest.raises(CannotFake, match=r"test_saving\.py:\d+ .* does not support such an object") as caught:
        torch.load(tmp_path / "model.pt")
    assert "state_dict" in caught.value.hint


PLACES: dict[str, tuple[Any, bool]] = {
    "none": (None, True),
    "cuda": ("cuda", True),
    "device": (torch.device("cuda", 0), True),
    "cpu": ("cpu", False),
    "dict": ({"cuda:0": "cpu"}, False),
    "other dict": ({"cuda:1": "cpu"}, True),
    "function": (lambda storage, tag: storage, False),
    "function none": (lambda storage, tag: None, True),
    "function cuda": (lambda storage, tag: storage.cuda(0), True),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_checkpoint_of_a_gpu_goes_where_it_was_saved_or_is_mapped(
    simulate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    where, on_device = PLACES[name]
    path = saved_on(monkeypatch, Net().state_dict(), tmp_path / "model.pt")
    with simulate() as observer:
        loaded = torch.load(path, map_location=where)
        assert {t.is_cuda for t in loaded.values()} == {on_device}
        assert observer.ledger.live_bytes() == (BYTES if on_device else 0)  # the shared weight once


def test_a_checkpoint_of_the_host_stays_there_unless_mapped(simulate: Any, tmp_path: Path) -> None:
    torch.save(
        {"weight": torch.arange(6.0).view(2, 3), "part": torch.arange(10.0)[2:4]}, tmp_path / "model.pt"
    )
    with simulate() as observer:
        assert not torch.load(tmp_path / "model.pt")["weight"].is_cuda and observer.ledger.live_bytes() == 0
        loaded = torch.load(tmp_path / "model.pt", map_location="cuda")
        assert loaded["weight"].is_cuda and observer.ledger.live_bytes() == 64
        assert loaded["weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] and loaded[
            "part"
        ].tolist() == [2.0, 3.0]


def test_a_whole_module_of_a_gpu_is_loaded_onto_it(
    simulate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = saved_on(monkeypatch, {"net": Net()}, tmp_path / "model.pt")
    with simulate() as observer:
        net = torch.load(path, weights_only=False)["net"]
        assert net.head.weight is net.embed.weight and net.head.weight.is_cuda and net.mean.is_cuda
        assert observer.ledger.live_bytes() == BYTES


def test_a_checkpoint_of_a_second_gpu_is_refused_unless_mapped(
    simulate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = saved_on(monkeypatch, {"weight": torch.ones(4)}, tmp_path / "model.pt", "cuda:1")
    with simulate():
        with pytest.raises(CannotFake, match="cuda:1"):
            torch.load(path)
        assert torch.load(path, map_location={"cuda:1": "cuda:0"})["weight"].is_cuda


def test_host_tensors_saved_by_safetensors_can_be_read_by_every_reader(observer: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    files = pytest.importorskip("safetensors.torch")
    observer.progress.files = True
    tensors = {"weight": torch.arange(6.0), "large": torch.empty(3000, 1000)}
    assert type(tensors["large"]) is not torch.Tensor  # a large host tensor has no values
    files.save_file(tensors, tmp_path / "host.safetensors", metadata={"format": "pt"})
    with safetensors.safe_open(tmp_path / "host.safetensors", framework="pt") as reader:
        assert reader.get_tensor("weight").tolist() == [0, 1, 2, 3, 4, 5]
        assert reader.get_slice("large").get_shape() == [3000, 1000]
    files.save_file({"weight": torch.zeros(6, device="cuda")}, tmp_path / "device.safetensors")
    assert files.load_file(tmp_path / "device.safetensors", device="cuda")["weight"].is_cuda
