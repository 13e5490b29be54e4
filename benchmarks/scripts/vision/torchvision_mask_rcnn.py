"""Fine-tune torchvision's Mask R-CNN on images with a few objects each, as the detection tutorial does."""

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor


class Pedestrians(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        corner = torch.rand(3, 2) * torch.tensor([300.0, 200.0])
        boxes = torch.cat([corner, corner + 60 + 120 * torch.rand(3, 2)], dim=1)
        masks = torch.zeros(3, 400, 500, dtype=torch.uint8)
        for mask, (x0, y0, x1, y1) in zip(masks, boxes.int().tolist(), strict=True):
            mask[y0:y1, x0:x1] = 1
        target = {
            "boxes": boxes,
            "labels": torch.ones(3, dtype=torch.int64),
            "masks": masks,
            "image_id": index,
            "area": (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
            "iscrowd": torch.zeros(3, dtype=torch.int64),
        }
        return torch.rand(3, 400, 500), target


model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
in_features = model.roi_heads.box_predictor.cls_score.in_features
model.roi_heads.box_predictor = FastRCNNPredictor(in_features, 2)
in_channels = model.roi_heads.mask_predictor.conv5_mask.in_channels
model.roi_heads.mask_predictor = MaskRCNNPredictor(in_channels, 256, 2)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
model.to(device)
optimizer = torch.optim.SGD(
    [p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9, weight_decay=0.0005
)
loader = DataLoader(
    Pedestrians(), batch_size=2, shuffle=True, collate_fn=lambda rows: tuple(zip(*rows, strict=True))
)
model.train()
for images, targets in loader:
    images = [image.to(device) for image in images]
    targets = [
        {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in t.items()}
        for t in targets
    ]
    losses = sum(model(images, targets).values())
    optimizer.zero_grad()
    losses.backward()
    optimizer.step()
    print(f"loss {losses.item():.3f}")
