"""Train torchvision's Faster R-CNN and detect objects in images afterwards."""

import torch
from torchvision.models.detection import fasterrcnn_resnet50_fpn

model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-4)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1e-3, total_iters=3)

model.train()
for step in range(3):
    images = [torch.rand(3, 480, 640).to("cuda") for _ in range(4)]
    targets = []
    for _ in images:
        corner = torch.rand(5, 2) * torch.tensor([400.0, 300.0])
        boxes = torch.cat([corner, corner + 40 + 100 * torch.rand(5, 2)], dim=1)
        targets.append({"boxes": boxes.to("cuda"), "labels": torch.randint(1, 21, (5,)).to("cuda")})
    losses = model(images, targets)
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warmup.step()
    print(f"step {step}: " + ", ".join(f"{name} {value.item():.3f}" for name, value in losses.items()))

model.eval()
with torch.inference_mode():
    detections = model([torch.rand(3, 480, 640).to("cuda") for _ in range(2)])
print([len(detection["boxes"]) for detection in detections])
