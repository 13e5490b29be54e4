"""A variational autoencoder in plain PyTorch: training, a test loss, and samples."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12288, 2048)
        self.fc21, self.fc22 = nn.Linear(2048, 64), nn.Linear(2048, 64)
        self.fc3, self.fc4 = nn.Linear(64, 2048), nn.Linear(2048, 12288)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        h = F.relu(self.fc1(x.view(-1, 12288)))
        mu, logvar = self.fc21(h), self.fc22(h)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(reconstruction, x, mu, logvar):
    bce = F.binary_cross_entropy(reconstruction, x.view(-1, 12288), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


train_loader = DataLoader(TensorDataset(torch.rand(1536, 3, 64, 64)), batch_size=512, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.rand(1024, 3, 64, 64)), batch_size=1024)
model = VAE().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model.train()
for (data,) in train_loader:
    data = data.to(device)
    optimizer.zero_grad()
    reconstruction, mu, logvar = model(data)
    loss = loss_function(reconstruction, data, mu, logvar)
    loss.backward()
    optimizer.step()

model.eval()
test_loss = 0
with torch.no_grad():
    for (data,) in test_loader:
        data = data.to(device)
        reconstruction, mu, logvar = model(data)
        test_loss += loss_function(reconstruction, data, mu, logvar).item()
    sample = model.decode(torch.randn(64, 64).to(device)).cpu()
print(f"test loss {test_loss / len(test_loader.dataset):.2f}", sample.shape)
