"""Train DETR of transformers on boxes with its matching loss, then post-process detections."""

import torch
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

backbone = ResNetConfig(
    embedding_size=64,
    hidden_sizes=[256, 512, 1024, 2048],
    depths=[3, 4, 6, 3],
    out_features=["stage4"],
)
config = DetrConfig(backbone_config=backbone, backbone=None, num_labels=20, num_queries=100)
model = DetrForObjectDetection(config).to("cuda")
slow = [p for name, p in model.named_parameters() if "backbone" in name and p.requires_grad]
fast = [p for name, p in model.named_parameters() if "backbone" not in name and p.requires_grad]
optimizer = torch.optim.AdamW([{"params": fast}, {"params": slow, "lr": 1e-5}], lr=1e-4, weight_decay=1e-4)

torch.manual_seed(0)
model.train()
for step in range(3):
    pixels = torch.randn(4, 3, 512, 512).to("cuda")
    labels = [
        {
            "class_labels": torch.randint(0, 20, (n,)).to("cuda"),
            "boxes": (0.2 + 0.3 * torch.rand(n, 4)).to("cuda"),
        }
        for n in (3, 8, 5, 1)
    ]
    loss = model(pixel_values=pixels, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    outputs = model(pixel_values=torch.randn(2, 3, 640, 640).to("cuda"))
scores, classes = outputs.logits.softmax(-1)[..., :-1].max(-1)
print([len(boxes[score > 0.3]) for boxes, score in zip(outputs.pred_boxes, scores, strict=True)])
