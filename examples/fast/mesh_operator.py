"""Train a kernel-integral operator on meshes; the twin of the slow script of this name."""

import torch
from torch import nn

NODES, EDGES, WIDTH, STEPS = 500, 4_000, 32, 3


class IntegralTransform(nn.Module):
    """Sums messages of a network over the edges that end in each node."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Sequential(nn.Linear(6, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        messages = self.kernel(torch.cat([nodes[edges[0]], nodes[edges[1]]], 1))
        sums = torch.zeros(len(nodes), WIDTH, device=nodes.device).index_add(0, edges[1], messages)
        return self.out(self.norm(sums))


def train(nodes: torch.Tensor, edges: torch.Tensor, values: torch.Tensor) -> float:
    model = IntegralTransform().to(nodes.device)
    optimizer = torch.optim.Adam(model.parameters())
    losses = torch.zeros(STEPS, device=nodes.device)
    for step in range(STEPS):
        output = model(nodes, edges).squeeze(1)
        loss = (output - values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()
    return losses.mean().item()


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    for _ in range(2):
        nodes = torch.rand(NODES, 3, device=device)
        edges = torch.randint(NODES, (2, EDGES), device=device)
        print(f"loss {train(nodes, edges, nodes.sin().sum(1)):.4f}")


if __name__ == "__main__":
    main()
