"""Attention over a graph's edges as in PyG: gather, softmax over neighbours by scatter, sum, max pooling."""

import torch
import torch.nn.functional as F
from torch import nn


def neighbour_softmax(score, index, nodes: int):
    spread = index[:, None].expand_as(score)
    top = score.new_full((nodes, score.shape[1]), float("-inf")).scatter_reduce(
        0, spread, score.detach(), "amax"
    )
    weight = (score - top[index]).exp()
    total = score.new_zeros(nodes, score.shape[1]).scatter_add(0, spread, weight)
    return weight / (total[index] + 1e-16)


class GraphAttention(nn.Module):
    def __init__(self, width: int, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.lin = nn.Linear(width, width, bias=False)
        self.source, self.target = nn.Linear(width, heads), nn.Linear(width, heads)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x, edges):
        source, target = edges
        score = F.leaky_relu(self.source(x)[source] + self.target(x)[target], 0.2)
        weight = neighbour_softmax(score, target, x.shape[0])
        messages = self.lin(x)[source].view(len(source), self.heads, -1) * weight[..., None]
        out = torch.zeros_like(x).index_add_(0, target, messages.flatten(1))
        return F.elu(self.norm(out)) + x


class GraphNet(nn.Module):
    def __init__(self, width: int = 128, depth: int = 3):
        super().__init__()
        self.lift = nn.Linear(16, width)
        self.layers = nn.ModuleList(GraphAttention(width) for _ in range(depth))
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x, edges, graph_of_node, graphs: int):
        x = self.lift(x)
        for layer in self.layers:
            x = layer(x, edges)
        spread = graph_of_node[:, None].expand_as(x)
        empty = x.new_zeros(graphs, x.shape[1])
        mean = empty.scatter_reduce(0, spread, x, "mean", include_self=False)
        top = empty.scatter_reduce(0, spread, x, "amax", include_self=False)
        return self.head(torch.cat([mean, top], dim=-1))


def message_passing(size: int, device: str):
    torch.manual_seed(0)
    nodes = max(64, size // 8)
    graphs = max(2, nodes // 32)
    model = GraphNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    x = torch.randn(nodes, 16, device=device)
    edges = torch.randint(nodes, (2, size), device=device)
    graph_of_node = torch.arange(nodes, device=device) * graphs // nodes
    labels = torch.randint(10, (graphs,), device=device)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edges, graph_of_node, graphs), labels)
        loss.backward()
        optimizer.step()

    return step
