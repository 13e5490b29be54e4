"""An equivariant message-passing network of e3nn: tensor products on the edges of random point clouds."""

import torch
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from e3nn.nn import FullyConnectedNet, Gate

device = "cuda"
edge_irreps = o3.Irreps.spherical_harmonics(2)
gate = Gate("64x0e", [torch.relu], "64x0e", [torch.sigmoid], "32x1o + 32x2e")


class Convolution(torch.nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.tensor_product = o3.FullyConnectedTensorProduct(
            inside, edge_irreps, outside, shared_weights=False
        )
        self.radial = FullyConnectedNet([10, 32, self.tensor_product.weight_numel], torch.nn.functional.silu)
        self.outside = o3.Irreps(outside)

    def forward(self, x, source, target, sphere, radial):
        messages = self.tensor_product(x[source], sphere, self.radial(radial))
        zeros = x.new_zeros(len(x), self.outside.dim)
        return zeros.index_add(0, target, messages) / 3.0


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Convolution("8x0e", gate.irreps_in)
        self.second = Convolution("64x0e + 32x1o + 32x2e", "1x0e")
        self.gate = gate

    def forward(self, x, positions, source, target):
        edges = positions[source] - positions[target]
        sphere = o3.spherical_harmonics(edge_irreps, edges, normalize=True, normalization="component")
        radial = soft_one_hot_linspace(edges.norm(dim=1), 0.0, 2.0, 10, basis="smooth_finite", cutoff=True)
        x = self.gate(self.first(x, source, target, sphere, radial))
        return self.second(x, source, target, sphere, radial).sum()


torch.manual_seed(0)
model = Network().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(3):
    positions = 3 * torch.rand(512, 3)
    distances = torch.cdist(positions, positions)
    target, source = ((distances < 0.9) & (distances > 0)).nonzero().t()  # on the host
    positions = positions.to(device).requires_grad_(True)
    x = torch.randn(512, 8, device=device)
    energy = model(x, positions, source.to(device), target.to(device))
    forces = -torch.autograd.grad(energy, positions, create_graph=True)[0]
    loss = energy.pow(2) + forces.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {len(source)} edges, loss {loss.item():.3f}")
