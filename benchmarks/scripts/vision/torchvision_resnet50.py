"""Train torchvision's ResNet-50 with SGD, then evaluate top-1 and top-5, as the ImageNet example does."""

import torch
import torch.nn as nn
import torchvision.models as models
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda")
model = models.resnet50().to(device)
criterion = nn.CrossEntropyLoss().to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)


def images(count):
    return TensorDataset(torch.randn(count, 3, 224, 224), torch.randint(0, 1000, (count,)))


train_loader = DataLoader(images(192), batch_size=64, shuffle=True, pin_memory=True)
val_loader = DataLoader(images(128), batch_size=64, pin_memory=True)


def accuracy(output, target, topk):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0) * (100 / len(target)) for k in topk]


model.train()
for i, (batch, target) in enumerate(train_loader):
    batch, target = batch.to(device, non_blocking=True), target.to(device, non_blocking=True)
    output = model(batch)
    loss = criterion(output, target)
    acc1, acc5 = accuracy(output, target, topk=(1, 5))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"[{i}] loss {loss.item():.3f} acc@1 {acc1.item():.2f} acc@5 {acc5.item():.2f}")
scheduler.step()

model.eval()
with torch.no_grad():
    for batch, target in val_loader:
        batch, target = batch.to(device, non_blocking=True), target.to(device, non_blocking=True)
        output = model(batch)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        print(f"loss {criterion(output, target).item():.3f} acc@1 {acc1.item():.2f} acc@5 {acc5.item():.2f}")
