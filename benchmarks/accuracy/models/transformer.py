"""A transformer encoder with SDPA: `transformer`, and `transformer_masked` with a padding mask."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, DEPTH, LENGTH = 512, 8, 6, 512


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, n, WIDTH))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask=None):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(32, WIDTH)
        self.position = nn.Parameter(torch.zeros(1, LENGTH, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, x, mask=None):
        x = self.lift(x) + self.position
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def transformer(size: int, device: str):
    torch.manual_seed(0)
    model = Encoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    signal = torch.randn(size, LENGTH, 32, device=device)

    def step():
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model(signal), signal)
        loss.backward()
        optimizer.step()

    return step


def transformer_masked(size: int, device: str):
    torch.manual_seed(0)
    model = Encoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    signal = torch.randn(size, LENGTH, 32, device=device)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (size,), device=device)

    def step():
        real = torch.arange(LENGTH, device=device)[None, :] < lengths[:, None]
        output = model(signal, mask=real[:, None, None, :])
        loss = ((output - signal).pow(2).mean(-1) * real).sum() / real.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
