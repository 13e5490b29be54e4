"""An e3nn network for a dipole per atom: full tensor products and gates."""

import torch
from e3nn import o3
from e3nn.nn import Gate
from torch import nn

HIDDEN_SCALARS = o3.Irreps("12x0e")
GATES = o3.Irreps("10x0e")
GATED = o3.Irreps("6x1o + 4x2e")


class Layer(nn.Module):
    def __init__(self, inputs, harmonics):
        super().__init__()
        self.gate = Gate(HIDDEN_SCALARS, [torch.nn.functional.silu], GATES, [torch.sigmoid], GATED)
        self.product = o3.FullyConnectedTensorProduct(inputs, harmonics, self.gate.irreps_in)
        self.skip = o3.Linear(inputs, self.gate.irreps_in)
        self.radial = nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 1))

    def forward(self, features, harmonics, basis, source, target):
        messages = self.product(features[source], harmonics) * self.radial(basis)
        summed = torch.zeros(features.shape[0], messages.shape[1], device=messages.device)
        summed = summed.index_add(0, target, messages) / 4.0
        return self.gate(summed + self.skip(features))


class Dipoles(nn.Module):
    def __init__(self):
        super().__init__()
        self.harmonics = o3.Irreps.spherical_harmonics(2)
        self.embed = nn.Embedding(6, 16)
        first = Layer(o3.Irreps("16x0e"), self.harmonics)
        second = Layer(first.gate.irreps_out, self.harmonics)
        self.layers = nn.ModuleList([first, second])
        self.out = o3.Linear(second.gate.irreps_out, o3.Irreps("1x1o"))
        self.register_buffer("centres", torch.linspace(0.0, 4.0, 8))

    def forward(self, species, vectors, source, target):
        harmonics = o3.spherical_harmonics(self.harmonics, vectors, normalize=True, normalization="component")
        basis = torch.exp(-((vectors.norm(dim=-1, keepdim=True) - self.centres) ** 2))
        features = self.embed(species)
        for layer in self.layers:
            features = layer(features, harmonics, basis, source, target)
        return self.out(features)


def dipoles(size, device):
    """size: edges; an atom has 16 of them."""
    torch.manual_seed(41)
    atoms = max(2, size // 16)
    model = Dipoles().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    positions = 3 * torch.rand(atoms, 3, device=device)
    source = torch.randint(0, atoms, (size,), device=device)
    target = torch.randint(0, atoms, (size,), device=device)
    species = torch.randint(0, 6, (atoms,), device=device)
    targets = torch.randn(atoms, 3, device=device)

    def step():
        vectors = positions[target] - positions[source] + 1e-3
        loss = (model(species, vectors, source, target) - targets).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
