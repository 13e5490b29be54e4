"""Train a diffusion model of denoising-diffusion-pytorch and sample from it, as its README does."""

import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Unet

model = Unet(dim=64, dim_mults=(1, 2, 4, 8), flash_attn=False)
diffusion = GaussianDiffusion(model, image_size=64, timesteps=1000, sampling_timesteps=4).cuda()
optimizer = torch.optim.Adam(diffusion.parameters(), lr=8e-5, betas=(0.9, 0.99))
for step in range(3):
    for _ in range(2):
        images = torch.rand(16, 3, 64, 64).cuda()  # normalized from 0 to 1
        loss = diffusion(images)
        (loss / 2).backward()
    torch.nn.utils.clip_grad_norm_(diffusion.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}")

diffusion.eval()
sampled = diffusion.sample(batch_size=16)
print(sampled.shape)
