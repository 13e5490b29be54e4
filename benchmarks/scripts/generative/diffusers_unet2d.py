"""Train diffusers' UNet2DModel with accelerate in fp16 and sample images, as the training tutorial does."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.utils.data import DataLoader

model = UNet2DModel(
    sample_size=64,
    in_channels=3,
    out_channels=3,
    layers_per_block=2,
    block_out_channels=(128, 128, 256, 256, 512),
    down_block_types=("DownBlock2D", "DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D", "UpBlock2D"),
)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(torch.rand(48, 3, 64, 64) * 2 - 1, batch_size=16, shuffle=True)
schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=len(loader))
accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=1)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

for clean in loader:
    noise = torch.randn(clean.shape, device=clean.device)
    timesteps = torch.randint(0, 1000, (clean.shape[0],), device=clean.device, dtype=torch.int64)
    noisy = noise_scheduler.add_noise(clean, noise, timesteps)
    with accelerator.accumulate(model):
        prediction = model(noisy, timesteps, return_dict=False)[0]
        loss = F.mse_loss(prediction, noise)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"loss {loss.detach().item():.3f}")

pipeline = DDPMPipeline(unet=accelerator.unwrap_model(model), scheduler=noise_scheduler)
images = pipeline(batch_size=16, num_inference_steps=4, output_type="np").images
print(images.shape)
