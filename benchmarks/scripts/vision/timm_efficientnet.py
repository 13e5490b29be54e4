"""Train timm's EfficientNet-B3 in channels-last and mixed precision with label smoothing and RMSprop."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler

model = timm.create_model("efficientnet_b3", num_classes=100, drop_rate=0.3)
model = model.to("cuda", memory_format=torch.channels_last)
optimizer = create_optimizer_v2(model, opt="rmsproptf", lr=0.01, momentum=0.9, weight_decay=1e-5)
scheduler = CosineLRScheduler(optimizer, t_initial=10, warmup_t=1)
criterion = LabelSmoothingCrossEntropy(smoothing=0.1)
scaler = torch.amp.GradScaler("cuda")

model.train()
for step in range(3):
    images = torch.randn(32, 3, 300, 300).to("cuda", memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (32,)).to("cuda")
    with torch.amp.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step(step)
    print(f"step {step}: loss {loss.item():.3f}")
