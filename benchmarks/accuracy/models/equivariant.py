"""A small equivariant network: e3nn tensor products over edges with radial weights, summed at the atoms."""

import torch
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from e3nn.nn import FullyConnectedNet, Gate
from torch import nn


class Convolution(nn.Module):
    def __init__(self, irreps_in, irreps_sh, irreps_out, neighbours: float):
        super().__init__()
        self.neighbours = neighbours
        middle, instructions = [], []
        for i, (mul, ir_in) in enumerate(irreps_in):
            for j, (_, ir_sh) in enumerate(irreps_sh):
                for ir_out in ir_in * ir_sh:
                    if ir_out in irreps_out:
                        instructions.append((i, j, len(middle), "uvu", True))
                        middle.append((mul, ir_out))
        middle = o3.Irreps(middle)
        self.product = o3.TensorProduct(
            irreps_in, irreps_sh, middle, instructions, internal_weights=False, shared_weights=False
        )
        self.radial = FullyConnectedNet([8, 64, self.product.weight_numel], torch.nn.functional.silu)
        self.self_interaction = o3.Linear(irreps_in, irreps_out)
        self.mix = o3.Linear(middle, irreps_out)

    def forward(self, x, source, target, sh, basis):
        messages = self.product(x[source], sh, self.radial(basis))
        total = torch.zeros(x.shape[0], messages.shape[1], dtype=x.dtype, device=x.device)
        total.index_add_(0, target, messages)
        return self.self_interaction(x) + self.mix(total / self.neighbours**0.5)


class Network(nn.Module):
    def __init__(self, neighbours: float):
        super().__init__()
        self.sh = o3.Irreps.spherical_harmonics(2)
        hidden = o3.Irreps("32x0e + 16x1o + 8x2e")
        gate = Gate("32x0e", [torch.relu], "24x0e", [torch.sigmoid], "16x1o + 8x2e")
        self.embed = nn.Linear(4, 32)
        self.first = Convolution(o3.Irreps("32x0e"), self.sh, gate.irreps_in, neighbours)
        self.second = Convolution(hidden, self.sh, gate.irreps_in, neighbours)
        self.gate = gate
        self.last = o3.Linear(hidden, "1x0e")

    def forward(self, kinds, positions, source, target):
        vector = positions[source] - positions[target]
        sh = o3.spherical_harmonics(self.sh, vector, normalize=True, normalization="component")
        basis = soft_one_hot_linspace(vector.norm(dim=1), 0.0, 3.0, 8, basis="smooth_finite", cutoff=True)
        x = self.embed(kinds)
        x = self.gate(self.first(x, source, target, sh, basis))
        x = self.gate(self.second(x, source, target, sh, basis))
        return self.last(x).sum()


def equivariant(size: int, device: str):
    torch.manual_seed(0)
    atoms = max(2, size // 16)
    model = Network(neighbours=16.0).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    kinds = torch.randn(atoms, 4, device=device)
    positions = torch.rand(atoms, 3, device=device) * 2
    source = torch.randint(atoms, (size,), device=device)
    target = torch.randint(atoms, (size,), device=device)

    def step():
        optimizer.zero_grad()
        energy = model(kinds, positions, source, target)
        loss = (energy / atoms - 1.0) ** 2
        loss.backward()
        optimizer.step()

    return step
