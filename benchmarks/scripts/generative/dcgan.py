"""DCGAN with the kernel search of cudnn.benchmark: generator and discriminator trained in turn."""

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn

cudnn.benchmark = True
device, nz, ngf, ndf, batch_size = torch.device("cuda"), 100, 64, 64, 256


def weights_init(m):
    if "Conv" in type(m).__name__:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in type(m).__name__:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


def up(inside, outside, stride, padding):
    return [
        nn.ConvTranspose2d(inside, outside, 4, stride, padding, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(True),
    ]


def down(inside, outside):
    return [nn.Conv2d(inside, outside, 4, 2, 1, bias=False), nn.BatchNorm2d(outside), nn.LeakyReLU(0.2, True)]


generator = nn.Sequential(
    *up(nz, ngf * 8, 1, 0),
    *up(ngf * 8, ngf * 4, 2, 1),
    *up(ngf * 4, ngf * 2, 2, 1),
    *up(ngf * 2, ngf, 2, 1),
    nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
discriminator = nn.Sequential(
    nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    *down(ndf, ndf * 2),
    *down(ndf * 2, ndf * 4),
    *down(ndf * 4, ndf * 8),
    nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)
generator.apply(weights_init)
discriminator.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(batch_size, nz, 1, 1, device=device)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))

for step in range(3):
    discriminator.zero_grad()
    real = torch.rand(batch_size, 3, 64, 64).to(device)
    label = torch.full((batch_size,), 1.0, device=device)
    loss_real = criterion(discriminator(real).view(-1), label)
    loss_real.backward()
    fake = generator(torch.randn(batch_size, nz, 1, 1, device=device))
    label.fill_(0.0)
    loss_fake = criterion(discriminator(fake.detach()).view(-1), label)
    loss_fake.backward()
    optimizer_d.step()
    generator.zero_grad()
    label.fill_(1.0)
    loss_g = criterion(discriminator(fake).view(-1), label)
    loss_g.backward()
    optimizer_g.step()
    print(f"[{step}] loss_d {(loss_real + loss_fake).item():.3f} loss_g {loss_g.item():.3f}")
with torch.no_grad():
    print(generator(fixed_noise).detach().cpu().shape)
