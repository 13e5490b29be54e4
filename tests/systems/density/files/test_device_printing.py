"""Numbers printed by torch: the text is that of the host, character for character."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.files import device_printing
from pinchpoint.systems.density.files.chgcar import write_chgcar
from pinchpoint.systems.density.files.device_printing import DevicePrinter, device_printer
from pinchpoint.systems.density.files.number_printing import HostPrinter
from pinchpoint.systems.density.files.volume import Volume

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)
TIES = np.array([0.0, -0.0, 12345678901.5, 12345678902.5, 99999999999.5, 0.999999999995, 5e-12, 1e22])


def text(chunks: Iterator[memoryview]) -> bytes:
    return b"".join(map(bytes, chunks))


def numbers(shape: tuple[int, int, int], digits: int) -> np.ndarray:
    """Signed numbers of very different sizes, beginning with ties and their neighbours."""
    rng = np.random.default_rng(digits)
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-digits, digits + 1, shape)
    ties = np.concatenate([TIES, np.nextafter(TIES, np.inf), -np.nextafter(TIES, 0)])
    values.reshape(-1)[: len(ties)] = ties
    return values


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("digits", [1, 20, 300], ids=["narrow", "various", "wide"])
@pytest.mark.parametrize("shape", [(5, 4, 6), (11, 7, 9)], ids=["full", "rest"])
def test_the_text_is_that_of_the_host(
    shape: tuple[int, int, int], digits: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_printing, "_LINES", 40)
    values = numbers(shape, digits)
    printer = device_printer(values, 0.7, device)
    assert printer is not None
    wanted = HostPrinter(values, 0.7)
    assert (printer.largest, printer.least) == (wanted.largest, wanted.least)
    assert text(printer.chunks(per_line=5)) == text(wanted.chunks(per_line=5))


def test_numbers_near_a_half_are_printed_as_python_rounds_them() -> None:
    # All of them count as near a half and are printed one by one.
    values = (np.arange(10_000_000_000, 10_000_000_512) + 0.49995).reshape(8, 8, 8)
    printer = DevicePrinter(torch.from_numpy(values), 1.0)
    words = text(printer.chunks(per_line=5)).decode().split()
    assert [float(word) for word in words] == [float(f"{v:.10E}") for v in values.transpose().reshape(-1)]


def test_without_memory_on_the_device_the_host_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    values = numbers((5, 4, 6), 3)
    wanted = text(HostPrinter(values, 2.0).chunks(per_line=5))

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    printer = DevicePrinter(torch.from_numpy(values), 2.0)
    monkeypatch.setattr(device_printing, "_lines", full)
    assert text(printer.chunks(per_line=5)) == wanted
    monkeypatch.setattr(device_printing, "DevicePrinter", full)
    assert device_printer(values, 2.0, "cpu") is None


@pytest.mark.parametrize("device", [GPU])
def test_a_file_printed_on_a_gpu_is_the_same_file(draw, tmp_path, device: str) -> None:
    volume = draw(3)
    names = "CHGCAR", "CHGCAR.gz"
    host = [write_chgcar(tmp_path / name, volume).read_bytes() for name in names]
    assert [write_chgcar(tmp_path / name, volume, device=device).read_bytes() for name in names] == host
    large = Volume(volume.structure, volume.total * 1e307)
    with pytest.raises(BadInput, match="overflows"):
        write_chgcar(tmp_path / names[0], large, device=device)
    assert (tmp_path / names[0]).read_bytes() == host[0]
