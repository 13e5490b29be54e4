"""A Fourier neural operator of neuraloperator on Darcy-like fields, evaluated at double resolution."""

import torch
from neuralop.losses import H1Loss, LpLoss
from neuralop.models import FNO
from neuralop.training import AdamW
from torch.utils.data import DataLoader, TensorDataset

device = "cuda"
model = FNO(n_modes=(32, 32), in_channels=1, out_channels=1, hidden_channels=64, projection_channel_ratio=2)
model = model.to(device)
optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
l2loss, h1loss = LpLoss(d=2, p=2), H1Loss(d=2)


def darcy(count, resolution):
    shape = (count, 1, resolution, resolution)
    return TensorDataset(torch.randn(shape), torch.randn(shape))


model.train()
for x, y in DataLoader(darcy(96, 128), batch_size=32, shuffle=True):
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    loss = h1loss(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")
scheduler.step()

model.eval()
with torch.no_grad():
    for x, y in DataLoader(darcy(16, 256), batch_size=8):
        print(f"L2 error {l2loss(model(x.to(device)), y.to(device)).item():.3f}")
