"""Node classification with PyG's GCNConv on a whole graph: training, validation and test after each epoch."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
nodes, edges = 50_000, 500_000
split = torch.randint(0, 3, (nodes,))
data = Data(
    x=torch.randn(nodes, 500),
    edge_index=torch.randint(0, nodes, (2, edges)),
    y=torch.randint(0, 7, (nodes,)),
    train_mask=split == 0,
    val_mask=split == 1,
    test_mask=split == 2,
).to(device)


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(500, 256)
        self.conv2 = GCNConv(256, 7)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.conv1(x, edge_index).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index)


model = GCN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.edge_index).argmax(dim=-1)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


best = 0.0
for epoch in range(1, 4):
    loss = train()
    train_acc, val_acc, test_acc = test()
    if val_acc > best:
        best, best_test = val_acc, test_acc
    print(f"epoch {epoch}: loss {loss:.4f}, train {train_acc:.3f}, val {val_acc:.3f}")
