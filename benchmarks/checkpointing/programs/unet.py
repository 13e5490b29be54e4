"""Train a U-Net that removes noise from 64 x 64 images, with attention at the two lowest levels."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

widths, steps = (128, 256, 256, 512), 1000


class Residual(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, before), nn.Conv2d(before, after, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, after), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(512, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, t):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.dropout(F.silu(self.norm2(y)), 0.1, self.training))


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, width)
        self.qkv, self.proj = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        y = F.scaled_dot_product_attention(*(z.transpose(-1, -2) for z in (q, k, v)))
        return x + self.proj(y.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU())
        self.down, self.up, kept, width = nn.ModuleList(), nn.ModuleList(), [widths[0]], widths[0]
        for level, after in enumerate(widths):
            for _ in range(2):
                attention = Attention(after) if level >= 2 else nn.Identity()
                self.down.append(nn.ModuleList([Residual(width, after), attention, nn.Identity()]))
                kept.append(width := after)
            if level < 3:
                pool = nn.Conv2d(width, width, 3, stride=2, padding=1)
                self.down[-1][2] = pool
                kept.append(width)
        self.middle = nn.ModuleList([Residual(width, width), Attention(width), Residual(width, width)])
        for level, after in reversed(list(enumerate(widths))):
            for turn in range(3):
                attention = Attention(after) if level >= 2 else nn.Identity()
                grow = nn.Conv2d(after, after, 3, padding=1) if level and turn == 2 else nn.Identity()
                self.up.append(nn.ModuleList([Residual(width + kept.pop(), after), attention, grow]))
                width = after
        self.last = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, t):
        frequencies = torch.exp(-math.log(10000) * torch.arange(64, device=x.device) / 64)
        angles = t[:, None].float() * frequencies
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x = self.first(x)
        kept = [x]
        for residual, attention, pool in self.down:
            x = attention(residual(x, t))
            kept.append(x)
            if isinstance(pool, nn.Conv2d):
                x = pool(x)
                kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, t)), t)
        for residual, attention, grow in self.up:
            x = attention(residual(torch.cat([x, kept.pop()], dim=1), t))
            if isinstance(grow, nn.Conv2d):
                x = grow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(x)


def build():
    model = UNet().to("cuda")
    return model, torch.optim.AdamW(model.parameters(), lr=2e-4)


def draw():
    return torch.randn(64, 3, 64, 64, device="cuda")


def train_step(model, optimizer, images):
    times = torch.randint(0, steps, (len(images),), device="cuda")
    noise = torch.randn_like(images)
    share = torch.linspace(1.0, 0.01, steps, device="cuda")[times][:, None, None, None]
    loss = F.mse_loss(model(share.sqrt() * images + (1 - share).sqrt() * noise, times), noise)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


if __name__ == "__main__":
    model, optimizer = build()
    for step in range(4):
        loss = train_step(model, optimizer, draw())
        print(f"step {step}: loss {loss.item():.3f}")
