"""Train torchvision's RetinaNet: a one-stage detector with anchors, focal loss, and mixed precision."""

import torch
from torchvision.models.detection import retinanet_resnet50_fpn_v2

model = retinanet_resnet50_fpn_v2(weights=None, weights_backbone=None, num_classes=80).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
model.train()
for step in range(20):  # the first ones overflow, and the scaler skips them
    images = [torch.rand(3, 512, 512, device="cuda") for _ in range(4)]
    targets = []
    for _ in images:
        corner = 300 * torch.rand(8, 2)
        boxes = torch.cat([corner, corner + 20 + 150 * torch.rand(8, 2)], dim=1)
        targets.append({"boxes": boxes.cuda(), "labels": torch.randint(0, 80, (8,)).cuda()})
    with torch.autocast("cuda"):
        losses = model(images, targets)
        loss = sum(losses.values())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step}: loss {loss.item():.3f}")
