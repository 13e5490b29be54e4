"""Train torchvision's ResNet-50 in mixed precision with the kernel search of cudnn.benchmark."""

import torch
import torchvision

torch.backends.cudnn.benchmark = True
device = "cuda"
model = torchvision.models.resnet50(num_classes=1000).to(device)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
scaler = torch.amp.GradScaler("cuda")

model.train()
for step in range(20):  # the first ones overflow, and the scaler skips them
    images = torch.randn(64, 3, 224, 224).to(device)
    targets = torch.randint(0, 1000, (64,)).to(device)
    with torch.amp.autocast("cuda"):
        loss = criterion(model(images), targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step}: loss {loss.item():.3f}")
