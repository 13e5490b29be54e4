"""Train a U-Net of segmentation-models-pytorch with a Dice loss, then compute the mean IoU of a batch."""

import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader, TensorDataset

model = smp.Unet(encoder_name="resnet34", encoder_weights=None, in_channels=3, classes=1).to("cuda")
loss_fn = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3, eta_min=1e-5)


def pets(count):
    return TensorDataset(torch.rand(count, 3, 256, 256), (torch.rand(count, 1, 256, 256) > 0.5).float())


model.train()
for images, masks in DataLoader(pets(96), batch_size=32, shuffle=True):
    images, masks = images.to("cuda"), masks.to("cuda")
    loss = loss_fn(model(images), masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"loss {loss.item():.3f}")

model.eval()
for images, masks in DataLoader(pets(64), batch_size=32):
    with torch.no_grad():
        predictions = (model(images.to("cuda")).sigmoid() > 0.5).float()
    tp, fp, fn, tn = smp.metrics.get_stats(predictions.long(), masks.to("cuda").long(), mode="binary")
    iou = smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro-imagewise")
    print(f"IoU {iou.item():.3f}")
