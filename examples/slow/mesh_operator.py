"""Train a kernel-integral operator on meshes and look at its memory, the slow way.

The lines that cost time or memory, or give wrong answers, end with the name of the rule that finds them.
"""

import torch
from torch import nn

NODES, EDGES, WIDTH, STEPS = 500, 4_000, 32, 3
GRAPHS: dict[tuple[int, ...], torch.Tensor] = {}


class IntegralTransform(nn.Module):
    """Sums messages of a network over the edges that end in each node."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Sequential(nn.Linear(6, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        messages = self.kernel(torch.cat([nodes[edges[0]], nodes[edges[1]]], 1))
        sums = []
        for node in range(len(nodes)):  # fault: loop-over-samples
            sums.append(messages[edges[1] == node].sum(0))
        return self.out(torch.stack(sums))

    def summary(self, messages: torch.Tensor) -> torch.Tensor:
        return self.norm(messages.mean(0).unsqueeze(0))  # fault: batch-norm-of-one


def graph(nodes: torch.Tensor) -> torch.Tensor:
    key = tuple(nodes.shape)
    if key not in GRAPHS:
        GRAPHS[key] = torch.randint(NODES, (2, EDGES), dtype=torch.int64).to(
            nodes.device
        )  # fault: cache-keyed-by-size
    return GRAPHS[key]


def train(nodes: torch.Tensor, values: torch.Tensor) -> float:
    model = IntegralTransform()
    if torch.cuda.is_available():
        model = model.cuda()  # fault: cuda-hard-coded
    optimizer = torch.optim.Adam(model.parameters())
    total = 0.0
    history = []
    for _ in range(STEPS):
        output = model(nodes, graph(nodes)).squeeze(1)
        loss = (output - values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss)  # fault: graph-kept
        if loss < 1e-6:  # fault: branch-on-tensor
            break
        total += float(loss)  # fault: sync-in-loop
    return total / STEPS


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    for _ in range(2):
        nodes = torch.rand(NODES, 3, device=device)
        values = nodes.sin().sum(1)
        loss = train(nodes, values)
        torch.cuda.empty_cache()  # fault: empty-cache-in-loop
        print(f"loss {loss:.4f}, {torch.cuda.memory_allocated() / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
