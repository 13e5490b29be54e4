"""A deep residual MLP that recomputes each block in backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, width: int = 256, depth: int = 8):
        super().__init__()
        self.lift = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = self.lift(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def checkpointed(size: int, device: str):
    torch.manual_seed(0)
    model = Network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    inputs = torch.randn(size, 6, device=device)
    target = torch.randn(size, 3, device=device)

    def step():
        loss = (model(inputs) - target).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
