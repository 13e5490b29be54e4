"""The PBE functional of a closed-shell density on a periodic grid, with gradients by Fourier transform.

    E = sum over points of  n (e_x(n) F(s) + e_c(n) + H(n, t))  volume / points
    v = df/dn - div(2 df/dsigma grad n),   sigma = |grad n|^2

Perdew, Burke and Ernzerhof, Phys. Rev. Lett. 77, 3865 (1996). The derivatives of f are automatic. Hartree
atomic units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMALLEST = 1e-10  # density below which exchange and correlation are zero: they are noise there
_KAPPA, _MU = 0.804, 0.2195149727645171
_BETA, _GAMMA = 0.06672455060314922, (1 - math.log(2)) / math.pi**2


def energy_density(density: Tensor, sigma: Tensor) -> Tensor:
    """Return f, the exchange-correlation energy per volume."""
    root = (3 * math.pi**2 * density) ** (1 / 3)  # k_F
    s2 = sigma / (2 * root * density) ** 2
    exchange = -3 / (4 * math.pi) * root * (1 + _KAPPA - _KAPPA / (1 + _MU * s2 / _KAPPA))
    rs = (3 / (4 * math.pi * density)) ** (1 / 3)
    half = rs.sqrt()
    series = 2 * 0.0310907 * half * (7.5957 + half * (3.5876 + half * (1.6382 + half * 0.49294)))
    local = -2 * 0.0310907 * (1 + 0.21370 * rs) * torch.log1p(1 / series)
    t2 = sigma / (4 * density**2 * 4 * root / math.pi)
    a = _BETA / _GAMMA / torch.expm1(-local / _GAMMA)
    ratio = t2 * (1 + a * t2) / (1 + a * t2 + (a * t2) ** 2)
    return density * (exchange + local + _GAMMA * torch.log1p(_BETA / _GAMMA * ratio))


def exchange_correlation(density: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return f and its potential on the grid. density: (nx, ny, nz); vectors: (3, nx, ny, nz), g."""
    waves = torch.fft.fftn(density)
    gradient = torch.fft.ifftn(1j * vectors * waves, dim=(1, 2, 3)).real
    used = density > SMALLEST
    n = torch.where(used, density, SMALLEST).requires_grad_()
    sigma = gradient.square().sum(0).requires_grad_()
    f = energy_density(n, sigma)
    by_density, by_sigma = torch.autograd.grad(f.sum(), (n, sigma))
    by_density, by_sigma = (torch.where(used, part, 0.0) for part in (by_density, by_sigma))
    flow = torch.fft.fftn(2 * by_sigma * gradient, dim=(1, 2, 3))
    divergence = torch.fft.ifftn((1j * vectors * flow).sum(0)).real
    return torch.where(used, f.detach(), 0.0), by_density - divergence
