"""Graph classification with PyG's GIN on batches of graphs of different sizes, with a test at the end."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MLP, GINConv, global_add_pool

torch.manual_seed(0)
dataset = []
for _ in range(1024):
    nodes = int(torch.randint(40, 160, (1,)))
    edge_index = torch.randint(0, nodes, (2, 4 * nodes))
    dataset.append(Data(x=torch.randn(nodes, 32), edge_index=edge_index, y=torch.randint(0, 2, (1,))))
train_loader = DataLoader(dataset[:768], batch_size=256, shuffle=True)
test_loader = DataLoader(dataset[768:], batch_size=256)
device = torch.device("cuda")


class GIN(torch.nn.Module):
    def __init__(self, channels=256, layers=5):
        super().__init__()
        self.convs = torch.nn.ModuleList(
            GINConv(MLP([32 if i == 0 else channels, channels, channels]), train_eps=False)
            for i in range(layers)
        )
        self.mlp = MLP([channels, channels, 2], norm=None, dropout=0.5)

    def forward(self, x, edge_index, batch, batch_size):
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.mlp(global_add_pool(x, batch, size=batch_size))


model = GIN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model.train()
total_loss = 0
for data in train_loader:
    data = data.to(device)
    optimizer.zero_grad()
    out = model(data.x, data.edge_index, data.batch, data.num_graphs)
    loss = F.cross_entropy(out, data.y)
    loss.backward()
    optimizer.step()
    total_loss += float(loss) * data.num_graphs

model.eval()
correct = 0
with torch.no_grad():
    for data in test_loader:
        data = data.to(device)
        out = model(data.x, data.edge_index, data.batch, data.num_graphs)
        correct += int((out.argmax(dim=-1) == data.y).sum())
print(f"loss {total_loss / 768:.3f}, accuracy {correct / 256:.3f}")
