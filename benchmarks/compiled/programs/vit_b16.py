"""Train torchvision's ViT-B/16, compiled, on batches of 64 images with bf16 autocast."""

import torch
import torchvision

model = torch.compile(torchvision.models.vit_b_16().to("cuda"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
criterion = torch.nn.CrossEntropyLoss()
for step in range(4):
    images = torch.randn(64, 3, 224, 224).to("cuda")
    targets = torch.randint(0, 1000, (64,)).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = criterion(model(images), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")
