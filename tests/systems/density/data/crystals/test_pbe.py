"""The PBE functional on a grid, compared with libxc (through PySCF) and with finite differences."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pinchpoint.systems.density.data.crystals.pbe import energy_density, exchange_correlation  # noqa: E402


def test_the_energy_is_that_of_libxc():
    libxc = pytest.importorskip("pyscf.dft.libxc", reason="libxc comes with PySCF")
    random = np.random.default_rng(0)
    density, slope = 10 ** random.uniform(-6, 1, 200), 10 ** random.uniform(-6, 1, 200)
    rho = np.stack([density, slope, np.zeros(200), np.zeros(200)])
    expected = libxc.eval_xc("pbe", rho)[0] * density
    ours = energy_density(torch.from_numpy(density), torch.from_numpy(slope**2)).numpy()
    assert np.allclose(ours, expected, rtol=2e-6)


def test_the_potential_is_the_derivative_of_the_energy():
    n, length = 12, 5.0
    torch.manual_seed(0)
    numbers = torch.from_numpy(np.fft.fftfreq(n, 1 / n)) * 2 * np.pi / length
    vectors = torch.stack(torch.meshgrid(numbers, numbers, numbers, indexing="ij"))
    x = torch.arange(n, dtype=torch.float64) * 2 * np.pi / n
    density = 0.4 + 0.1 * torch.sin(x)[:, None, None] + 0.05 * torch.cos(2 * x)[None, :, None].expand(n, n, n)
    change = (torch.cos(x)[None, None, :] + torch.sin(x)[:, None, None]).expand(n, n, n)
    _, potential = exchange_correlation(density, vectors)

    def energy(step):
        return float(exchange_correlation(density + step * change, vectors)[0].sum())

    slope = (energy(1e-4) - energy(-1e-4)) / 2e-4
    assert float((potential * change).sum()) == pytest.approx(slope, rel=1e-7)


def test_empty_space_has_no_potential():
    f, potential = exchange_correlation(torch.zeros(4, 4, 4, dtype=torch.float64), torch.zeros(3, 4, 4, 4))
    assert float(f.abs().max()) == float(potential.abs().max()) == 0
