"""A denoising diffusion model in plain PyTorch: the training loss and the reverse process."""

import torch
import torch.nn as nn
import torch.nn.functional as F

T, DEVICE = 200, "cuda"
betas = torch.linspace(1e-4, 0.02, T, device=DEVICE)
alphas = 1.0 - betas
alpha_bars = torch.cumprod(alphas, dim=0)


class Block(nn.Module):
    def __init__(self, inside, outside, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(time, outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Denoiser(nn.Module):
    def __init__(self, width=96, time=256):
        super().__init__()
        self.embed = nn.Sequential(nn.Embedding(T, time), nn.Linear(time, time), nn.SiLU())
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.down2 = Block(width, width, time), Block(width, 2 * width, time)
        self.middle = Block(2 * width, 2 * width, time)
        self.up2, self.up1 = Block(4 * width, width, time), Block(2 * width, width, time)
        self.tail = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, t):
        t = self.embed(t)
        a = self.down1(self.head(x), t)
        b = self.down2(F.avg_pool2d(a, 2), t)
        c = self.middle(F.avg_pool2d(b, 2), t)
        d = self.up2(torch.cat([F.interpolate(c, scale_factor=2), b], dim=1), t)
        return self.tail(self.up1(torch.cat([F.interpolate(d, scale_factor=2), a], dim=1), t))


model = Denoiser().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
for step in range(3):
    x0 = (torch.rand(64, 3, 64, 64) * 2 - 1).to(DEVICE)
    t = torch.randint(0, T, (64,), device=DEVICE)
    noise = torch.randn_like(x0)
    scale = alpha_bars[t][:, None, None, None]
    loss = F.mse_loss(model(scale.sqrt() * x0 + (1 - scale).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    x = torch.randn(64, 3, 64, 64, device=DEVICE)
    for i in reversed(range(T - 8, T)):
        t = torch.full((64,), i, device=DEVICE, dtype=torch.long)
        mean = (x - betas[i] / (1 - alpha_bars[i]).sqrt() * model(x, t)) / alphas[i].sqrt()
        x = mean + betas[i].sqrt() * torch.randn_like(x) if i > 0 else mean
print(x.shape)
