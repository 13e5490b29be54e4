"""A transformer over patches of a spectrum, no mask, RMS norm and SwiGLU, under bf16 autocast."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class SwiGLU(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.feed = SwiGLU(width, 1408)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Former(nn.Module):
    def __init__(self, patch=16, patches=384, width=512, heads=8, layers=6):
        super().__init__()
        self.embed = nn.Linear(patch, width)
        self.place = nn.Parameter(0.02 * torch.randn(patches, width))
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, 12)

    def forward(self, spectra):
        x = self.embed(spectra.unflatten(-1, (-1, 16))) + self.place
        return self.head(self.norm(self.layers(x)).mean(dim=1))


def spectra_former(size, device):
    torch.manual_seed(13)
    kind = torch.device(device).type
    model = Former().to(device)
    decay = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))
    spectra = torch.randn(size, 384 * 16, device=device)
    targets = torch.randn(size, 12, device=device)

    def step():
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = F.mse_loss(model(spectra), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step
