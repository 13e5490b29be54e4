"""Train torchvision's compiled ResNet-50 on batches of 64 images with fp16 autocast and a gradient scaler."""

import torch
import torchvision

model = torchvision.models.resnet50().to("cuda")
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
criterion = torch.nn.CrossEntropyLoss()
scaler = torch.amp.GradScaler("cuda", init_scale=1024)
for step in range(4):
    images = torch.randn(64, 3, 224, 224, device="cuda")
    targets = torch.randint(0, 1000, (64,), device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = criterion(compiled(images), targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step}: loss {loss.item():.3f}")
