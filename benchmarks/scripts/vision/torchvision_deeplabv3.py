"""Train torchvision's DeepLabV3 with its auxiliary loss, then evaluate a confusion matrix."""

import torch
import torch.nn.functional as F
import torchvision

CLASSES = 21
model = torchvision.models.segmentation.deeplabv3_resnet50(
    weights=None, weights_backbone=None, num_classes=CLASSES, aux_loss=True
).cuda()
parameters = [
    {"params": [p for p in model.backbone.parameters() if p.requires_grad]},
    {"params": [p for p in model.classifier.parameters() if p.requires_grad]},
    {"params": [p for p in model.aux_classifier.parameters() if p.requires_grad], "lr": 0.1},
]
optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def criterion(outputs, target):
    losses = {name: F.cross_entropy(x, target, ignore_index=255) for name, x in outputs.items()}
    return losses["out"] + 0.5 * losses["aux"]


def batch(count):
    return torch.randn(count, 3, 480, 480).cuda(), torch.randint(0, CLASSES, (count, 480, 480)).cuda()


model.train()
for step in range(3):
    images, targets = batch(4)
    loss = criterion(model(images), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")

model.eval()
matrix = torch.zeros((CLASSES, CLASSES), dtype=torch.int64, device="cuda")
with torch.inference_mode():
    for _ in range(2):
        images, targets = batch(1)
        predictions = model(images)["out"].argmax(1).flatten()
        targets = targets.flatten()
        known = (targets >= 0) & (targets < CLASSES)
        index = CLASSES * targets[known].to(torch.int64) + predictions[known]
        matrix += torch.bincount(index, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
print(f"pixel accuracy {(matrix.diag().sum() / matrix.sum()).item():.3f}")
