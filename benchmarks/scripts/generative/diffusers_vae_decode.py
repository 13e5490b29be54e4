"""Decode latents to images with diffusers' AutoencoderKL in fp16, as a text-to-image pipeline does last."""

import torch
from diffusers import AutoencoderKL

vae = AutoencoderKL(
    in_channels=3,
    out_channels=3,
    latent_channels=4,
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=2,
)
vae = vae.to("cuda", dtype=torch.float16).eval()
latents = torch.randn(4, 4, 64, 64, device="cuda", dtype=torch.float16)
with torch.no_grad():
    images = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]
images = (images / 2 + 0.5).clamp(0, 1).cpu().permute(0, 2, 3, 1).float().numpy()
print(images.shape)
