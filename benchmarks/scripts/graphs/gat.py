"""Node classification with PyG's GATConv: attention over the edges, with dropout and several heads."""

import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv

device = torch.device("cuda")
nodes, edges, features, classes = 20_000, 200_000, 1433, 7
x = torch.rand(nodes, features, device=device)
edge_index = torch.randint(0, nodes, (2, edges), device=device)
y = torch.randint(0, classes, (nodes,), device=device)
train_mask = torch.arange(nodes, device=device) < 2000


class GAT(torch.nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.conv1 = GATConv(features, hidden, heads, dropout=0.6)
        self.conv2 = GATConv(hidden * heads, classes, heads=1, concat=False, dropout=0.6)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.6, training=self.training)
        x = F.elu(self.conv1(x, edge_index))
        x = F.dropout(x, p=0.6, training=self.training)
        return self.conv2(x, edge_index)


model = GAT(32, heads=8).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
for epoch in range(3):
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index)
    loss = F.cross_entropy(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        pred = model(x, edge_index).argmax(dim=-1)
    accuracy = int((pred[~train_mask] == y[~train_mask]).sum()) / int((~train_mask).sum())
    print(f"epoch {epoch}: loss {float(loss):.3f}, accuracy {accuracy:.3f}")
