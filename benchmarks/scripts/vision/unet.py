"""A U-Net in plain PyTorch: RMSprop, a gradient scaler, and a Dice score after the epoch."""

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


class DoubleConv(nn.Sequential):
    def __init__(self, inside, outside):
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, channels=3, classes=2, widths=(64, 128, 256, 512)):
        super().__init__()
        self.first = DoubleConv(channels, widths[0])
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in widths[-2::-1])
        self.join = nn.ModuleList(DoubleConv(2 * a, a) for a in widths[-2::-1])
        self.last = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        skips = [self.first(x)]
        for layer in self.down:
            skips.append(layer(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        return self.last(x)


def dice_loss(probabilities, target):
    overlap = 2 * (probabilities * target).sum(dim=(-1, -2))
    return 1 - ((overlap + 1e-6) / (probabilities.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2)) + 1e-6)).mean()


device = torch.device("cuda")
model = UNet().to(device=device, memory_format=torch.channels_last)
dataset = TensorDataset(torch.rand(16, 3, 320, 480), torch.randint(0, 2, (16, 320, 480)))
train_set, val_set = random_split(dataset, [12, 4], generator=torch.Generator().manual_seed(0))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True)
scaler = torch.amp.GradScaler("cuda", enabled=True)
model.train()
for images, masks in DataLoader(train_set, batch_size=4, shuffle=True):
    images = images.to(device=device, memory_format=torch.channels_last)
    masks = masks.to(device)
    with torch.autocast("cuda", enabled=True):
        logits = model(images)
        loss = F.cross_entropy(logits, masks)
        loss += dice_loss(logits.softmax(dim=1).float(), F.one_hot(masks, 2).permute(0, 3, 1, 2).float())
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()

model.eval()
score = 0
with torch.inference_mode(), torch.autocast("cuda"):
    for images, masks in DataLoader(val_set, batch_size=4):
        predictions = F.one_hot(model(images.to(device)).argmax(dim=1), 2).permute(0, 3, 1, 2).float()
        score += 1 - dice_loss(predictions, F.one_hot(masks.to(device), 2).permute(0, 3, 1, 2).float())
print(f"dice {float(score):.3f}")
