"""Classify spoken commands with a one-dimensional convolutional network, as the torchaudio tutorial does."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchaudio
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda")


class M5(nn.Module):
    def __init__(self, n_output=35, n_channel=64):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(1, n_channel, kernel_size=80, stride=4), nn.BatchNorm1d(n_channel)
        self.conv2, self.bn2 = nn.Conv1d(n_channel, n_channel, kernel_size=3), nn.BatchNorm1d(n_channel)
        self.conv3, self.bn3 = (
            nn.Conv1d(n_channel, 2 * n_channel, kernel_size=3),
            nn.BatchNorm1d(2 * n_channel),
        )
        self.fc1 = nn.Linear(2 * n_channel, n_output)
        self.pool = nn.MaxPool1d(4)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.pool(F.relu(self.bn2(self.conv2(x))))
        x = self.pool(F.relu(self.bn3(self.conv3(x))))
        x = F.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)
        return F.log_softmax(self.fc1(x), dim=2)


def commands(count):
    return TensorDataset(torch.randn(count, 1, 16_000), torch.randint(0, 35, (count,)))


transform = torchaudio.transforms.Resample(orig_freq=16_000, new_freq=8_000).to(device)
model = M5().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.0001)
model.train()
for data, target in DataLoader(commands(768), batch_size=256, shuffle=True):
    data, target = transform(data.to(device)), target.to(device)
    loss = F.nll_loss(model(data).squeeze(), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")

model.eval()
correct = 0
for data, target in DataLoader(commands(1024), batch_size=512):
    data, target = transform(data.to(device)), target.to(device)
    pred = model(data).argmax(dim=-1)
    correct += pred.squeeze().eq(target).sum().item()
print(f"accuracy {correct / 1024:.3f}")
