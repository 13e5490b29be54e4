"""Energies and forces of molecules with PyG's SchNet: training differentiates twice."""

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn.models import SchNet


def complete_graph(positions, batch):  # in place of a neighbour search: all pairs of a molecule
    same = batch[:, None] == batch[None]
    same.fill_diagonal_(False)
    edge_index = same.nonzero().t()
    return edge_index, (positions[edge_index[0]] - positions[edge_index[1]]).norm(dim=-1)


molecules = [
    Data(
        z=torch.randint(1, 10, (20,)),
        pos=4 * torch.rand(20, 3),
        energy=torch.randn(1),
        forces=torch.randn(20, 3),
    )
    for _ in range(192)
]
device = torch.device("cuda")
model = SchNet(hidden_channels=128, num_filters=128, num_interactions=6, interaction_graph=complete_graph)
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)

for data in DataLoader(molecules, batch_size=64, shuffle=True):
    data = data.to(device)
    data.pos.requires_grad_(True)
    energy = model(data.z, data.pos, data.batch).squeeze(-1)
    forces = -torch.autograd.grad(energy.sum(), data.pos, create_graph=True)[0]
    loss = 0.01 * (energy - data.energy).pow(2).mean() + 0.99 * (forces - data.forces).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")
