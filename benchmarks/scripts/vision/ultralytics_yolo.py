"""Train the YOLO11 network of ultralytics with its own loss, then detect with non-maximum suppression."""

import torch
from ultralytics.cfg import get_cfg
from ultralytics.nn.tasks import DetectionModel
from ultralytics.utils.nms import non_max_suppression

torch.manual_seed(0)
model = DetectionModel("yolo11s.yaml", nc=80, verbose=False).to("cuda")
model.args = get_cfg()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
scaler = torch.amp.GradScaler("cuda")

model.train()
for step in range(20):  # the first ones overflow, and the scaler skips them
    owner = torch.randint(0, 16, (64,)).sort().values  # the image of each box
    batch = {
        "img": torch.rand(16, 3, 640, 640).to("cuda"),
        "batch_idx": owner.float(),
        "cls": torch.randint(0, 80, (64, 1)).float(),
        "bboxes": 0.3 + 0.2 * torch.rand(64, 4),
    }
    with torch.autocast("cuda"):
        loss, _ = model(batch)
        loss = loss.sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    predictions = model(torch.rand(8, 3, 640, 640).to("cuda"))
detections = non_max_suppression(predictions, conf_thres=0.25, iou_thres=0.7)
print([len(found) for found in detections])
