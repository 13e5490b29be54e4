"""GraphSAGE of PyG on random parts of a large graph, then inference on the whole graph."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import SAGEConv

torch.manual_seed(0)
nodes, edges = 200_000, 2_000_000
data = Data(
    x=torch.randn(nodes, 100),
    edge_index=torch.randint(0, nodes, (2, edges)),
    y=torch.randint(0, 47, (nodes,)),
)
data.train_mask = torch.rand(nodes) < 0.7
loader = RandomNodeLoader(data, num_parts=4, shuffle=True)
device = torch.device("cuda")


class SAGE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(100, 256), SAGEConv(256, 256), SAGEConv(256, 47)])

    def forward(self, x, edge_index):
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if i < len(self.convs) - 1:
                x = F.dropout(F.relu(x), p=0.5, training=self.training)
        return x


model = SAGE().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
model.train()
for batch in loader:
    batch = batch.to(device)
    optimizer.zero_grad()
    out = model(batch.x, batch.edge_index)
    loss = F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f} on {batch.num_nodes} nodes and {batch.num_edges} edges")

model.eval()
with torch.no_grad():
    pred = model(data.x.to(device), data.edge_index.to(device)).argmax(dim=-1).cpu()
print(f"accuracy {(pred == data.y)[~data.train_mask].float().mean():.3f}")
