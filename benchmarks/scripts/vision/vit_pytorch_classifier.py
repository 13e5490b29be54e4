"""Train a vision transformer of vit-pytorch with a validation loop, as the package's example does."""

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from vit_pytorch import ViT

device = "cuda"
model = ViT(
    image_size=256,
    patch_size=16,
    num_classes=2,
    dim=1024,
    depth=6,
    heads=16,
    mlp_dim=2048,
    dropout=0.1,
    emb_dropout=0.1,
).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-5)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)


def pets(count):
    return TensorDataset(torch.randn(count, 3, 256, 256), torch.randint(0, 2, (count,)))


train_loader = DataLoader(pets(96), batch_size=32, shuffle=True)
valid_loader = DataLoader(pets(128), batch_size=64)
epoch_loss = epoch_accuracy = 0
for data, label in train_loader:
    data, label = data.to(device), label.to(device)
    output = model(data)
    loss = criterion(output, label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    epoch_accuracy += (output.argmax(dim=1) == label).float().mean() / len(train_loader)
    epoch_loss += loss / len(train_loader)
scheduler.step()

with torch.no_grad():
    val_loss = val_accuracy = 0
    for data, label in valid_loader:
        data, label = data.to(device), label.to(device)
        val_output = model(data)
        val_loss += criterion(val_output, label) / len(valid_loader)
        val_accuracy += (val_output.argmax(dim=1) == label).float().mean() / len(valid_loader)
print(
    f"loss {epoch_loss:.3f}, accuracy {epoch_accuracy:.3f}, val loss {val_loss:.3f}, val {val_accuracy:.3f}"
)
