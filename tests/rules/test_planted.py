"""Faults as people write them, other than the examples of the rules, and code that must not be reported."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from pinchpoint.rules.engine.catalog import all_rules
from pinchpoint.rules.engine.reading import File, parse
from pinchpoint.rules.scan import find_in

FAULTS: list[tuple[set[str], str]] = [
    (
        {"sync-in-loop"},
        """
import torch
class Sampler:
    def sample(self, grid_to_points, device):
        metadata = self._meta(grid_to_points, device)
        grid_counts = metadata['grid_counts']
        out = []
        for grid_idx in range(len(grid_counts)):
            grid_count = grid_counts[grid_idx].item()
            out.append(grid_count)
        return out
""",
    ),
    (
        {"reused-permutation", "sync-in-loop"},
        """
import torch
def perms(grid_counts, num_grids, device):
    unique_counts = torch.unique(grid_counts)
    perm_cache = {}
    for count in unique_counts:
        perm_cache[count.item()] = torch.randperm(count, device=device)
    all_perms = [perm_cache[grid_counts[i].item()] for i in range(num_grids)]
    return torch.cat(all_perms)
""",
    ),
    (
        {"sync-in-loop"},
        """
import torch
import torch.nn as nn
device = "cuda"
model = nn.Linear(10, 1).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
running = 0.0
for x, y in loader:
    x, y = x.to(device), y.to(device)
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    running += loss.item()
""",
    ),
    (
        {"graph-kept"},
        """
import torch
def train(model, loader, opt, crit):
    losses = []
    for x, y in loader:
        opt.zero_grad()
        loss = crit(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss)
    return sum(losses)
""",
    ),
    (
        {"graph-kept", "missing-no-grad"},
        """
import torch
def evaluate(model, loader, crit):
    total_loss = 0
    for x, y in loader:
        loss = crit(model(x), y)
        total_loss += loss
    return total_loss / len(loader)
""",
    ),
    (
        {"graph-kept"},
        """
import torch
def train(model, loader, opt, crit):
    epoch_loss = 0
    for x, y in loader:
        opt.zero_grad()
        loss = crit(model(x), y)
        loss.backward()
        opt.step()
        epoch_loss = epoch_loss + loss * x.size(0)
    return epoch_loss
""",
    ),
    (
        {"loop-over-samples"},
        """
import torch
def normals(points: torch.Tensor):
    out = torch.zeros_like(points)
    for i in range(points.shape[0]):
        out[i] = points[i] / points[i].norm()
    return out
""",
    ),
    (
        {"loop-over-samples"},
        """
import torch
def cell_means(points, cells, num_cells):
    means = []
    for c in range(num_cells):
        mask = cells == c
        means.append(points[mask].mean(dim=0))
    return torch.stack(means)
""",
    ),
    (
        {"loop-over-samples"},
        """
import jax.numpy as jnp
from physics import local_energy
def energies(log_psi, r_elec, n_samples):
    current = []
    for i in range(n_samples):
        e_l = local_energy(log_psi, r_elec[i])
        current.append(e_l)
    return jnp.stack(current)
""",
    ),
    (
        {"float-per-sample"},
        """
import jax
import jax.numpy as jnp
def energies(local_energy, r_batch):
    energies = []
    for i in range(128):
        e_l = local_energy(r_batch[i])
        energies.append(float(e_l))
    return jnp.array(energies)
""",
    ),
    (
        {"cache-keyed-by-size"},
        """
import torch
class GridSampler:
    def __init__(self):
        self._sampling_metadata_cache = {}
    def _compute(self, grid_to_points, device):
        total_points = sum(len(p) for p in grid_to_points)
        num_grids = len(grid_to_points)
        cache_key = (total_points, num_grids)
        if cache_key in self._sampling_metadata_cache:
            return self._sampling_metadata_cache[cache_key]
        grid_counts = torch.tensor([len(p) for p in grid_to_points], device=device)
        flat = torch.cat(grid_to_points)
        metadata = {'grid_counts': grid_counts, 'flat': flat}
        self._sampling_metadata_cache[cache_key] = metadata
        return metadata
""",
    ),
    (
        {"cache-keyed-by-size"},
        """
import torch
_CACHE = {}
def neighbours(points, radius):
    key = points.shape
    if key in _CACHE:
        return _CACHE[key]
    edges = torch.cdist(points, points) < radius
    _CACHE[key] = edges
    return edges
""",
    ),
    (
        {"transform-in-loop"},
        """
import jax
import jax.numpy as jnp
def kinetic_energy(log_psi, r_r):
    grad_fn = jax.grad(log_psi)
    n_elec = r_r.shape[0]
    laplacian = jnp.array(0.0)
    for i in range(n_elec):
        for j in range(3):
            def extract_coord(r):
                return grad_fn(r)[i, j]
            second_deriv = jax.grad(extract_coord)(r_r)
            laplacian = laplacian + second_deriv[i, j]
    return laplacian
""",
    ),
    (
        {"transform-in-loop"},
        """
import jax
def train(loss, params, data):
    for batch in data:
        g = jax.jit(jax.grad(loss))(params, batch)
        params = jax.tree.map(lambda p, q: p - 0.1 * q, params, g)
    return params
""",
    ),
    (
        {"jit-per-call"},
        """
import jax
def compute_local_energies_batch(network, r_elec_batch, pos):
    def compute_single(r_single):
        return network(r_single, pos)
    vmap_compute = jax.vmap(compute_single, in_axes=(0))
    vmap_compute_jit = jax.jit(vmap_compute)
    energies = vmap_compute_jit(r_elec_batch)
    return energies
""",
    ),
    (
        {"jit-per-call"},
        """
import jax
def step(params, x):
    return jax.jit(lambda p: (p * x).sum())(params)
""",
    ),
    (
        {"full-hessian", "jit-callable-argument"},
        """
import jax
import jax.numpy as jnp
@jax.jit
def kinetic_energy_optimized(log_psi, r_r):
    hessian_fn = jax.hessian(log_psi)
    hessian = hessian_fn(r_r)
    n_elec = r_r.shape[0]
    laplacian = 0.0
    for i in range(n_elec):
        for j in range(3):
            idx = i * 3 + j
            laplacian += hessian[idx, idx]
    return laplacian
""",
    ),
    (
        {"jit-missing-static"},
        """
from jax import jit
import jax.numpy as jnp
@jit
def rollout(x, n_steps):
    for _ in range(n_steps):
        x = x * 0.9
    return x
""",
    ),
    (
        {"jit-missing-static"},
        """
import jax, jax.numpy as jnp
def f(x, training):
    if training:
        x = x * 2
    return x
g = jax.jit(f)
""",
    ),
    (
        {"jit-missing-static"},
        """
import jax, jax.numpy as jnp
@jax.jit
def f(x, mode):
    if mode == "train":
        x = x * 2
    return x
""",
    ),
    (
        {"full-hessian"},
        """
import torch
def lap(f, x):
    H = torch.autograd.functional.hessian(f, x)
    return H.diagonal().sum()
""",
    ),
    (
        {"full-hessian"},
        """
import jax, jax.numpy as jnp
def lap(f, x):
    H = jax.jacfwd(jax.grad(f))(x)
    return jnp.sum(jnp.diag(H))
""",
    ),
    (
        {"unknown-jax-option"},
        """
from jax import config
config.update("jax_enable_x64x", True)
""",
    ),
    (
        {"unknown-xla-flag"},
        """
import os
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_enable_fast_min_max_math=true")
import jax
""",
    ),
    (
        {"missing-no-grad", "sync-in-loop"},
        """
import torch
def validate(model, val_loader, criterion):
    model.eval()
    total = 0.0
    for x, y in val_loader:
        out = model(x)
        total += criterion(out, y).item()
    return total
""",
    ),
    (
        {"missing-no-grad"},
        """
import torch
def evaluate(net, loader, device):
    correct = 0
    for x, y in loader:
        pred = net(x.to(device)).argmax(dim=1)
        correct += (pred == y.to(device)).sum()
    return correct
""",
    ),
    (
        {"gradient-cut"},
        """
import torch
class Generator(torch.nn.Module):
    def forward(self, rgb):
        with torch.no_grad():
            ccsr_results = self.ccsr(rgb)
            ccsr_output = ccsr_results.mean(0)
            del ccsr_results
        ccsr_output.requires_grad_(True)
        return ccsr_output
""",
    ),
    (
        {"gradient-cut"},
        """
import torch
class Generator(torch.nn.Module):
    def forward(self, rgb):
        with torch.no_grad():
            out = self.sr(rgb)
        out.requires_grad = True
        return out
""",
    ),
    (
        {"default-tensor-type"},
        """
import torch
torch.set_default_tensor_type('torch.cuda.FloatTensor')
""",
    ),
    (
        {"deprecated-amp"},
        """
import torch
from torch.cuda.amp import autocast, GradScaler
scaler = GradScaler()
def f(model, x):
    with autocast():
        return model(x)
""",
    ),
    (
        {"deprecated-launch"},
        """
import os
import torch
os.system("python -m torch.distributed.launch --nproc_per_node=2 train.py")
""",
    ),
    (
        {"deprecated-launch"},
        """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
""",
    ),
    (
        {"scaler-with-bfloat16"},
        """
import torch
from torch.amp import autocast, GradScaler
scaler = GradScaler("cuda")
def step(model, x, opt):
    with autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    ),
    (
        {"scaler-not-saved"},
        """
import torch
scaler_g = torch.amp.GradScaler("cuda")
def save(path, G, g_optimizer, it):
    ckpt = dict(G=G.state_dict(), g_opt=g_optimizer.state_dict(), it=it)
    torch.save(ckpt, path)
""",
    ),
    (
        {"penalty-under-autocast"},
        """
import torch
from torch import autograd
def d_step(discriminator, x_real, use_amp):
    with torch.autocast("cuda", enabled=use_amp):
        d_real = discriminator(x_real)
        reg = compute_grad2(d_real, x_real).mean()
    return reg
def compute_grad2(d_out, x_in):
    grad_dout = autograd.grad(outputs=d_out.sum(), inputs=x_in, create_graph=True, retain_graph=True)[0]
    return grad_dout.pow(2).view(x_in.size(0), -1).sum(1)
""",
    ),
    (
        {"hard-coded-chunk"},
        """
import torch
class Collator:
    def __call__(self, probes):
        batch_size = 3000
        batches = []
        for i in range(0, len(probes), batch_size):
            batches.append(probes[i:i + batch_size])
        return batches
""",
    ),
    (
        {"hard-coded-chunk"},
        """
import torch
def render(model, rays):
    return torch.cat([model(r) for r in torch.split(rays, 4096)])
""",
    ),
    (
        {"hard-coded-chunk"},
        """
import torch
def render(model, rays):
    outs = []
    for i in range(0, rays.shape[0], 1024 * 32):
        outs.append(model(rays[i:i + 1024 * 32]))
    return torch.cat(outs)
""",
    ),
    (
        {"cuda-hard-coded", "load-then-move"},
        """
import torch
device = torch.device("cuda")
model = build()
ckpt = torch.load("m.pt", map_location='cpu', weights_only=True)
model.load_state_dict(ckpt["model"])
model = model.to(device)
""",
    ),
    (
        {"load-then-move"},
        """
import torch
def load(path, device):
    model = Net()
    model.load_state_dict(torch.load(path, map_location=torch.device("cpu"), weights_only=True))
    model.to(device)
    return model
""",
    ),
    (
        {"load-then-move"},
        """
import torch
def load(path, device):
    emb = torch.load(path, weights_only=True, map_location="cpu").to(device)
    return emb
""",
    ),
    (
        {"unsafe-load"},
        """
import torch
state = torch.load("model.pt", map_location=dev)
""",
    ),
    (
        {"unpinned-non-blocking"},
        """
import torch, numpy as np
def move(arr, device):
    return torch.from_numpy(arr).to(device, non_blocking=True)
""",
    ),
    (
        {"loader-without-pinning", "loader-without-workers", "unpinned-non-blocking"},
        """
import torch
from torch.utils.data import DataLoader
def train(ds, model, opt, device):
    train_loader = DataLoader(ds, batch_size=4, shuffle=True)
    for x, y in train_loader:
        x = x.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)
        loss = model(x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    ),
    (
        {"loader-without-pinning", "loader-without-workers"},
        """
import torch
def train(ds, model, opt, device):
    train_loader = torch.utils.data.DataLoader(ds, batch_size=4, shuffle=True)
    for batch in train_loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        loss = model(**batch).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    ),
    (
        {"blocking-copy"},
        """
import torch
from torch.utils.data import DataLoader
def predict(ds, model, device):
    loader = DataLoader(ds, batch_size=None, num_workers=4, pin_memory=True)
    out = []
    with torch.no_grad():
        for batch in loader:
            batch = {k: v.to(device) for k, v in batch.items()}
            out.append(model(batch))
    return out
""",
    ),
    (
        {"host-read-before-sync"},
        """
import torch
def fetch(x):
    y = x.to("cpu", non_blocking=True)
    print(y.sum().item())
""",
    ),
    (
        {"host-read-before-sync"},
        """
import torch
def fetch(x):
    return x.detach().to(device="cpu", non_blocking=True).numpy()
""",
    ),
    (
        {"empty-cache-in-loop"},
        """
import torch
def evaluate(evaluator, angle_positions):
    all_rgb = []
    with torch.no_grad():
        for i, (u, v) in enumerate(angle_positions):
            rgb = evaluator.create_samples(u, v)
            all_rgb.append(rgb.cpu())
            if i % 2 == 0:
                torch.cuda.empty_cache()
""",
    ),
    (
        {"empty-cache-in-loop", "gc-in-loop"},
        """
import gc
import torch
def train(model, loader, opt):
    for it, x in enumerate(loader):
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()
        gc.collect()
        torch.cuda.empty_cache()
""",
    ),
    (
        {"module-in-loop"},
        """
import torch
class MCE_Loss(torch.nn.Module):
    def forward(self, a, b):
        return (a - b).abs().mean()
def train(model, loader, opt):
    for x, y in loader:
        mce_loss = MCE_Loss()
        opt.zero_grad()
        loss = mce_loss(model(x), y)
        loss.backward()
        opt.step()
""",
    ),
    (
        {"module-in-loop"},
        """
import torch.nn as nn
def train(model, loader, opt, device):
    for x, y in loader:
        opt.zero_grad()
        loss = nn.CrossEntropyLoss()(model(x), y)
        loss.backward()
        opt.step()
""",
    ),
    (
        {"used-after-del"},
        """
import torch
def train(model, loader, opt, writer):
    for it, x in enumerate(loader):
        opt.zero_grad()
        d_real = model(x)
        loss = d_real.mean()
        loss.backward()
        opt.step()
        del d_real, loss
        if it % 100 == 0:
            writer.add_scalar("loss", loss, it)
""",
    ),
    (
        {"gradients-set-to-zero"},
        """
import torch
def step(opt): opt.zero_grad(set_to_none=False)
""",
    ),
    (
        {"repeated-labels"},
        """
import torch
def make(images, label, n_views):
    rgb = torch.repeat_interleave(images, n_views, dim=0)
    label = label.repeat(n_views)
    return rgb, label
""",
    ),
    (
        {"repeated-labels"},
        """
import torch
def make(x, labels, k):
    x = x.unsqueeze(1).expand(-1, k, -1).reshape(-1, x.shape[-1])
    labels = labels.repeat(k)
    return x, labels
""",
    ),
    (
        {"wide-index"},
        """
import torch
def agg(src, index, n):
    index = index.long()
    out = src.new_zeros(n, src.shape[1])
    out.index_add_(0, index, src)
    return out
""",
    ),
    (
        {"scatter-in-loop"},
        """
import torch
def agg(edge_index: torch.Tensor, msg: torch.Tensor, n):
    out = torch.zeros(n, msg.shape[1], device=msg.device)
    for e in range(edge_index.shape[1]):
        dst = edge_index[1, e]
        out[dst] += msg[e]
    return out
""",
    ),
    (
        {"scatter-in-loop"},
        """
import torch
def agg(idx, vals, n):
    out = torch.zeros(n)
    for i, v in zip(idx, vals):
        out[i] += v
    return out
""",
    ),
    (
        {"unseeded-workers"},
        """
import numpy as np
from torch.utils.data import Dataset, DataLoader
class D(Dataset):
    def __len__(self): return 10
    def __getitem__(self, i):
        return np.random.rand(3)
loader = DataLoader(D(), batch_size=2, num_workers=4)
""",
    ),
    (
        {"cuda-hard-coded"},
        """
import torch
model = torch.nn.Linear(3, 3).cuda()
""",
    ),
    (
        {"cuda-hard-coded"},
        """
import torch
device = torch.device("cuda:0")
x = torch.zeros(3, device="cuda")
""",
    ),
    (
        {"batch-norm-of-one"},
        """
import torch, torch.nn as nn
from torch.utils.data import DataLoader
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 1)
    def forward(self, x):
        return self.fc(self.bn(x))
def train(ds, opt):
    net = Net()
    train_loader = DataLoader(ds, batch_size=1, num_workers=2)
    for epoch in range(10):
        for x in train_loader:
            opt.zero_grad()
            net(x).mean().backward()
            opt.step()
""",
    ),
    (
        {"accumulation-drops-tail"},
        """
import torch
def train(model, train_loader, optimizer, accumulation_steps=4):
    for i, (x_real, label) in enumerate(train_loader):
        loss = model(x_real, label) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    ),
    (
        {"missing-eval"},
        """
import torch
import torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    def forward(self, x): return self.f(x)
def train(model, loader, opt):
    for x in loader:
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()
def test(model, loader):
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum()
    return correct
""",
    ),
    (
        {"wrapper-bypassed"},
        """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
class T:
    def run(self):
        self.model = DDP(self.net)
        for batch in self.loader:
            feat = self.model.module.backbone(batch)
            loss = feat.mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
""",
    ),
    (
        {"constant-copied-per-call"},
        """
import torch
import torch.nn as nn
class N(nn.Module):
    def forward(self, x):
        mean = torch.tensor([0.1, 0.2, 0.3]).to(x.device)
        return x - mean
""",
    ),
    (
        {"unused-device-copy"},
        """
import torch
def predict(model, loader, device):
    model.eval()
    out = []
    with torch.no_grad():
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            out.append(model(x))
    return torch.cat(out)
""",
    ),
    (
        {"print-in-loop"},
        """
import torch
def train(model, loader, opt):
    for x in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        print("loss", loss)
""",
    ),
    (
        {"branch-on-tensor"},
        """
import torch
def train(model, loader, opt):
    best = 1e9
    for x in loader:
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        if loss < best:
            best = 1
""",
    ),
    (
        {"graph-kept", "sync-in-loop"},
        """
import torch
class Trainer:
    def __init__(self, model, loader, device):
        self.model = model.to(device)
        self.loader = loader
        self.device = device
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.criterion = torch.nn.MSELoss()
    def train_epoch(self):
        self.model.train()
        epoch_loss = 0
        history = []
        for x, y in self.loader:
            x = x.to(self.device)
            y = y.to(self.device)
            self.optimizer.zero_grad()
            out = self.model(x)
            loss = self.criterion(out, y)
            loss.backward()
            self.optimizer.step()
            epoch_loss += loss
            history.append(loss.item())
        return epoch_loss
""",
    ),
    (
        {"sync-in-loop"},
        """
import torch
def f(n, device):
    x = torch.rand(n, device=device)
    total = 0.0
    for i in range(n):
        total += float(x[i])
    return total
""",
    ),
    (
        {"sync-in-loop"},
        """
import torch
def f(tensors, device):
    t = torch.stack(tensors).to(device)
    i = 0
    while i < 100:
        if t.max().item() > 3:
            t = t * 0.5
        i += 1
    return t
""",
    ),
    (
        {"sync-in-loop"},
        """
import torch
def names(model, loader, classes):
    out = []
    with torch.no_grad():
        for x in loader:
            pred = model(x).argmax(dim=1)
            for p in pred:
                out.append(classes[p.item()])
    return out
""",
    ),
    (
        {"cuda-hard-coded", "sync-in-loop"},
        """
import torch
losses = {k: v.item() for k, v in zip(names, torch.stack(parts).to("cuda:1"))}
""",
    ),
    (
        {"sync-in-loop"},
        """
import jax.numpy as jnp
def f(x):
    y = jnp.exp(x)
    return [y[i].item() for i in range(len(y))]
""",
    ),
    (
        {"transform-in-loop"},
        """
from jax import vmap, grad
def f(fn, xs):
    out = []
    for x in xs:
        out.append(vmap(grad(fn))(x))
    return out
""",
    ),
    (
        {"transform-in-loop"},
        """
import jax
def run(fn, xs):
    return [jax.jit(fn)(x) for x in xs]
""",
    ),
    (
        {"jit-per-call"},
        """
import jax
class Model:
    def energy(self, params, x):
        def inner(p):
            return self.apply(p, x)
        return jax.jit(inner)(params)
""",
    ),
    (
        {"compile-in-loop"},
        """
import torch
class M(torch.nn.Module):
    def forward(self, x):
        f = torch.compile(self.block)
        return f(x)
""",
    ),
    (
        {"jit-callable-argument"},
        """
from jax import jit
@jit
def apply(fn, x):
    return fn(x) + 1
""",
    ),
    (
        {"jit-callable-argument"},
        """
import jax
def energy(psi, x):
    return psi(x) ** 2
energy_jit = jax.jit(energy)
""",
    ),
    (
        {"module-in-loop"},
        """
import torch
import torch.nn as nn
def train(model, dataloader, lr):
    for epoch in range(10):
        for x, y in dataloader:
            optimizer = torch.optim.Adam(model.parameters(), lr=lr)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
""",
    ),
    (
        {"module-in-loop"},
        """
import torch
from torch.nn import CrossEntropyLoss
def train(model, dataloader, optimizer):
    for x, y in dataloader:
        criterion = CrossEntropyLoss().to("cpu")
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    ),
    (
        {"missing-no-grad"},
        """
import torch
model.eval()
preds = []
for x, y in test_loader:
    preds.append(model(x).argmax(1))
""",
    ),
    (
        {"missing-no-grad"},
        """
import torch
class T:
    def validate(self):
        self.model.eval()
        n = 0
        for x, y in self.val_loader:
            n += (self.model(x).argmax(1) == y).sum()
        self.model.train()
        return n
""",
    ),
    (
        {"gradient-cut"},
        """
import torch
def step(encoder, decoder, x):
    with torch.no_grad():
        z = encoder(x)
    z.requires_grad_()
    return decoder(z)
""",
    ),
    (
        {"deprecated-amp"},
        """
import torch.cuda.amp as amp
scaler = amp.GradScaler()
""",
    ),
    (
        {"scaler-with-bfloat16"},
        """
import torch
amp_dtype = torch.bfloat16
scaler = torch.amp.GradScaler()
def step(model, x):
    with torch.autocast(device_type="cuda", dtype=amp_dtype):
        return model(x)
""",
    ),
    (
        {"penalty-under-autocast"},
        """
import torch
from torch.amp import autocast
def r1(D, real):
    real.requires_grad_(True)
    with autocast("cuda"):
        out = D(real)
        g = torch.autograd.grad(out.sum(), real, create_graph=True)[0]
        return (g ** 2).sum()
""",
    ),
    (
        {"hard-coded-chunk"},
        """
import torch
def infer(net, pts):
    chunk = 8192
    res = []
    for p in torch.split(pts, chunk):
        res.append(net(p))
    return torch.cat(res)
""",
    ),
    (
        {"hard-coded-chunk"},
        """
import torch
def infer(net, pts):
    res = [net(pts[i:i+4096]) for i in range(0, len(pts), 4096)]
    return torch.cat(res)
""",
    ),
    (
        {"load-then-move"},
        """
import torch
class P:
    def load(self, path):
        state = torch.load(path, map_location=torch.device('cpu'), weights_only=True)
        self.model.load_state_dict(state['model'])
        self.model.to(self.device)
""",
    ),
    (
        {"load-then-move"},
        """
import torch
def load(path):
    return torch.load(path, map_location="cpu", weights_only=True).cuda(0)
""",
    ),
    (
        {"unpinned-non-blocking"},
        """
import torch
def up(rows, device):
    t = torch.tensor(rows)
    return t.cuda(device, non_blocking=True)
""",
    ),
    (
        {"loader-without-workers"},
        """
import torch
from torch.utils.data import DataLoader
class Exp:
    def setup(self):
        self.train_loader = DataLoader(self.ds, batch_size=32, shuffle=True, pin_memory=True)
    def fit(self):
        for x in self.train_loader:
            x = x.to(self.device, non_blocking=True)
            self.opt.zero_grad()
            self.model(x).mean().backward()
            self.opt.step()
""",
    ),
    (
        {"loader-without-pinning"},
        """
import torch
from torch.utils.data import DataLoader
class Exp:
    def setup(self):
        self.train_loader = DataLoader(self.ds, batch_size=32, shuffle=True, num_workers=4)
    def fit(self):
        for x in self.train_loader:
            x = x.to(self.device)
            self.opt.zero_grad()
            self.model(x).mean().backward()
            self.opt.step()
""",
    ),
    (
        {"host-read-before-sync"},
        """
import torch
def log(loss):
    cpu_loss = loss.detach().to("cpu", non_blocking=True)
    print(float(cpu_loss))
""",
    ),
    (
        {"empty-cache-in-loop"},
        """
import torch
from torch.cuda import empty_cache
def run(model, xs):
    for x in xs:
        with torch.no_grad():
            model(x)
        empty_cache()
""",
    ),
    (
        {"used-after-del"},
        """
import torch
def f(model, x):
    h = model(x)
    y = h.mean()
    del h
    return y, h.shape
""",
    ),
    (
        {"repeated-labels"},
        """
import torch
def g(z, y, n):
    z = z.repeat(n, 1)
    y = y.repeat_interleave(n)
    return z, y
""",
    ),
    (
        {"wide-index"},
        """
import torch
def f(x, idx):
    idx = idx.to(dtype=torch.long)
    return torch.index_select(x, 0, idx)
""",
    ),
    (
        {"scatter-in-loop"},
        """
import jax.numpy as jnp
def f(x, idx):
    out = jnp.zeros(10)
    for i in range(len(idx)):
        out = out.at[idx[i]].add(x[i])
    return out
""",
    ),
    (
        {"scatter-in-loop"},
        """
import torch
def f(src, index, n):
    out = torch.zeros((n, src.size(1)), device=src.device)
    for i in range(index.numel()):
        out[index[i]] += src[i]
    return out
""",
    ),
    (
        {"unseeded-workers"},
        """
import random
import torch
from torch.utils import data
class DS(data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return random.random()
dl = data.DataLoader(DS(), num_workers=8)
""",
    ),
    (
        {"cuda-hard-coded"},
        """
import torch
def f(x):
    return x.to("cuda:0")
""",
    ),
    (
        {"accumulation-drops-tail"},
        """
import torch
def train(net, dl, opt, scaler, accum):
    opt.zero_grad()
    for step, batch in enumerate(dl):
        loss = net(batch).mean() / accum
        scaler.scale(loss).backward()
        if step % accum == accum - 1:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
""",
    ),
    (
        {"accumulation-drops-tail"},
        """
import torch
def train(net, dl, opt, accum):
    for step, batch in enumerate(dl, start=1):
        loss = net(batch).mean() / accum
        loss.backward()
        if not step % accum:
            opt.step()
            opt.zero_grad()
""",
    ),
    (
        {"missing-eval"},
        """
import torch, torch.nn as nn
net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x in train_loader:
    opt.zero_grad()
    net(x).mean().backward()
    opt.step()
with torch.no_grad():
    for x in test_loader:
        print(net(x).shape)
""",
    ),
    (
        {"cache-keyed-by-size"},
        """
import torch
class Graph:
    def __init__(self):
        self._graph_cache = {}
    def get(self, pos, r):
        n = pos.shape[0]
        if n in self._graph_cache:
            return self._graph_cache[n]
        d = torch.cdist(pos, pos)
        edges = (d < r).nonzero().t()
        self._graph_cache[n] = edges
        return edges
""",
    ),
    (
        {"reused-permutation"},
        """
import torch
def train(model, x, opt, epochs):
    perm = torch.randperm(len(x))
    for epoch in range(epochs):
        for i in range(0, len(x), opt.bs):
            idx = perm[i:i + opt.bs]
            opt.zero_grad()
            model(x[idx]).mean().backward()
            opt.step()
""",
    ),
    (
        {"full-hessian"},
        """
import jax
import jax.numpy as jnp
def laplacian(f, x):
    return jnp.einsum("ii->", jax.hessian(f)(x))
""",
    ),
    (
        {"full-hessian"},
        """
import torch
from torch.func import hessian
def laplacian(f, x):
    return torch.trace(hessian(f)(x))
""",
    ),
    (
        {"unknown-xla-flag"},
        """
import os
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_bogus_option=3"
import jax
""",
    ),
    (
        {"gradients-set-to-zero"},
        """
import torch
for p in ps:
    model.zero_grad(False)
""",
    ),
    (
        {"batch-norm-of-one"},
        """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
loader = DataLoader(ds, batch_size=1, shuffle=True, num_workers=2)
for x in loader:
    opt.zero_grad()
    model(x).mean().backward()
    opt.step()
""",
    ),
    (
        {"clock-without-wait"},
        """
import time, torch
def bench(net, x):
    x = x.cuda(0)
    t0 = time.time()
    for _ in range(100):
        y = net(x)
    t1 = time.time()
    print((t1 - t0) / 100)
""",
    ),
    (
        {"default-tensor-type"},
        """
import torch
torch.set_default_tensor_type(torch.cuda.FloatTensor)
""",
    ),
    (
        {"deprecated-launch"},
        """
import subprocess, sys, torch
subprocess.run([sys.executable, "-m", "torch.distributed.launch", "train.py"])
""",
    ),
    (
        {"retained-graph"},
        """
import torch
def t(model, dl, optimizer):
    for b in dl:
        optimizer.zero_grad()
        l = model(b).mean()
        l.backward(retain_graph=True)
        optimizer.step()
""",
    ),
    (
        {"sync-in-loop"},
        """
import torch as th
def f(q, n):
    a = th.softmax(q, -1)
    s = 0
    for k in range(n):
        s += a[k].sum().item()
    return s
""",
    ),
    (
        {"sync-in-loop"},
        """
import torch
def f(x: torch.Tensor):
    idx = torch.nonzero(x)
    return {int(i): x[i].item() for i in idx}
""",
    ),
    (
        {"full-hessian", "transform-in-loop"},
        """
import jax
def laplacian(f, x):
    out = 0.
    for i in range(len(x)):
        out += jax.hessian(f)(x)[i, i]
    return out
""",
    ),
    (
        {"missing-no-grad", "sync-in-loop"},
        """
import torch
@torch.jit.ignore
def validate_epoch(model, data_loader, device):
    model.eval()
    losses = []
    for images, targets in data_loader:
        images = images.to(device)
        outputs = model(images)
        losses.append(outputs.mean().item())
    return sum(losses)
""",
    ),
    (
        {"unsafe-load"},
        """
import torch
model.load_state_dict(torch.load("x.pth", map_location=device, weights_only=False))
""",
    ),
    (
        {"unsafe-load"},
        """
from torch import load
w = load("x.pth")
""",
    ),
    (
        {"jit-missing-static"},
        """
import jax, jax.numpy as jnp
from functools import partial
@partial(jax.jit, static_argnums=0)
def f(n, x, depth):
    for _ in range(depth):
        x = x + n
    return x
""",
    ),
    (
        {"jit-missing-static"},
        """
import jax, jax.numpy as jnp
@jax.jit
def f(x, n):
    return x.reshape(n, -1)
""",
    ),
    (
        {"cache-keyed-by-size"},
        """
import torch
_cache = {}
def edges(mesh, radius):
    key = (mesh.size(0), radius)
    if key in _cache:
        return _cache[key]
    e = torch.cdist(mesh, mesh).lt(radius).nonzero()
    _cache[key] = e
    return e
""",
    ),
    (
        {"cache-keyed-by-size"},
        """
from functools import lru_cache
import torch
class G:
    def edges(self, mesh):
        key = len(mesh)
        try:
            return self.cache[key]
        except KeyError:
            e = torch.cdist(mesh, mesh)
            self.cache[key] = e
            return e
""",
    ),
    (
        {"float-per-sample"},
        """
import torch
from lib import score
def f(samples):
    return [float(score(samples[i])) for i in range(len(samples))]
""",
    ),
    (
        {"module-in-loop"},
        """
import torch
for epoch in range(10):
    for x, y in loader:
        mse = torch.nn.MSELoss()
        loss = mse(net(x), y)
        optim.zero_grad()
        loss.backward()
        optim.step()
""",
    ),
    (
        {"loader-without-workers"},
        """
import torch
from torch.utils.data import DataLoader
train_loader = DataLoader(dataset, batch_size=64, shuffle=True, pin_memory=True)
for x, y in train_loader:
    x = x.to(device, non_blocking=True)
""",
    ),
    (
        {"scaler-not-saved"},
        """
import torch
class T:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda")
    def save(self):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, "x.pt")
""",
    ),
    (
        {"graph-kept"},
        """
import torch
class T:
    def run(self):
        for x, y in self.loader:
            loss = self.criterion(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.total_loss += loss
""",
    ),
    (
        {"graph-kept"},
        """
import torch
def train(m, dl, opt, crit):
    stats = {"loss": []}
    for x, y in dl:
        loss = crit(m(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        stats["loss"].append(loss)
""",
    ),
    (
        {"hard-coded-chunk"},
        """
import torch
class Renderer:
    def render(self, rays):
        chunk_size = 1024
        outs = []
        for i in range(0, rays.shape[0], chunk_size):
            outs.append(self.mlp(rays[i:i + chunk_size]))
        return torch.cat(outs)
""",
    ),
    (
        {"copied-every-turn"},
        """
import torch
def train(model, loader, opt, class_weights, device):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y, weight=class_weights.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    ),
    (
        {"wrapper-bypassed"},
        """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
def train(net, loader, opt):
    ddp = DDP(net)
    for x in loader:
        out = ddp.module(x)
        opt.zero_grad()
        out.mean().backward()
        opt.step()
""",
    ),
    (
        {"loss-without-gradient"},
        """
import torch
def train(m, dl, opt):
    for a, b in dl:
        fa = m(a)
        with torch.no_grad():
            cons_loss = (fa - m(b)).pow(2).mean()
        loss = fa.mean() + 0.1 * cons_loss
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    ),
    (
        {"loss-without-gradient"},
        """
import torch
def train(m, dl, opt):
    for a, b in dl:
        loss = m(a).mean()
        with torch.no_grad():
            cons = (m(a) - m(b)).pow(2).mean()
        loss += cons
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    ),
    (
        {"transform-in-loop"},
        """
import jax
def train(loss, params, batches):
    for batch in batches:
        @jax.jit
        def step(params, batch):
            return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params, batch))
        params = step(params, batch)
    return params
""",
    ),
    (
        {"graph-kept"},
        """
import torch
def train(model, loader, opt):
    history = []
    for step, x in enumerate(loader):
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        history.append((step, loss))
    return history
""",
    ),
    (
        {"missing-no-grad"},
        """
import torch
from torch import nn
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
for x in loader:
    opt.zero_grad()
    model(x).mean().backward()
    opt.step()
model.eval()
outputs = []
for x in loader:
    outputs.append(model(x).argmax(-1))
""",
    ),
    (
        {"created-on-host"},
        """
import torch
class Attention(torch.nn.Module):
    def forward(self, x):
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1])).to(x.device)
        return x * mask
""",
    ),
]
SOUND: dict[str, str] = {
    "a function jitted in a loop and kept": """
import jax
def compiled(sizes):
    functions = {}
    for size in sizes:
        @jax.jit
        def step(x):
            return x[:size] * 2
        functions[size] = step
    return functions
""",
    "a sum that the caller differentiates": """
import torch
def full_loss(model, loader):
    total = 0.0
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        total += loss
    return total
def train(model, loader, opt):
    for step in range(1000):
        opt.zero_grad()
        full_loss(model, loader).backward()
        opt.step()
""",
    "losses of a second pass, differentiated under another name": """
import torch
def train(model, tasks, opt, inner):
    for step in range(1000):
        outer = []
        for task in tasks:
            loss = model(task.x).mean()
            loss.backward()
            inner.step()
            inner.zero_grad()
            loss = model(task.y).mean()
            outer.append(loss)
        opt.zero_grad()
        meta = sum(outer) / len(outer)
        meta.backward()
        opt.step()
""",
    "a read every hundred steps": """
import torch
def train(model, loader, opt):
    for step, x in enumerate(loader):
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(step, loss.item())
""",
    "numpy in a loop": """
import numpy as np
import torch
def sizes(counts):
    counts = np.bincount(counts)
    return [counts[i].item() for i in range(len(counts))]
""",
    "a tensor that is on the CPU": """
import torch
def primes():
    numbers = torch.arange(100)
    return [number.item() for number in numbers if number > 50]
""",
    "a loop of three turns": """
import torch
def axes(x: torch.Tensor):
    return [x[:, axis].max().item() for axis in range(3)]
""",
    "a read once per epoch": """
import torch
def fit(model, loader, opt, epochs):
    for epoch in range(epochs):
        total = 0.0
        for x in loader:
            opt.zero_grad()
            loss = model(x).mean()
            loss.backward()
            opt.step()
            total += loss.detach()
        print(epoch, total.item())
""",
    "outputs that are kept on the host": """
import torch
@torch.inference_mode()
def predict(model, loader):
    outputs = []
    for x in loader:
        outputs.append(model(x).cpu())
    return torch.cat(outputs)
""",
    "a loss of several parts": """
import torch
def loss_of(heads, features, targets, criterion):
    loss = 0
    for head, target in zip(heads, targets):
        loss += criterion(head(features), target)
    return loss
""",
    "a sum that is differentiated itself": """
import torch
def step(model, views, opt):
    total = 0.0
    for view in views:
        loss = model(view).mean()
        total = total + loss
    opt.zero_grad()
    total.backward()
    opt.step()
""",
    "a function that is compiled once": """
import jax
@jax.jit
def update(params, batch):
    return jax.tree.map(lambda p: p - jax.grad(lambda q: (q * batch).sum())(p), params)
def fit(params, batches):
    for batch in batches:
        params = update(params, batch)
    return params
""",
    "vmap over batch axes": """
import jax
def batched(f, axes):
    for _ in range(axes):
        f = jax.vmap(f)
    return f
""",
    "a compiled function that is returned": """
import jax
def make_step(loss, rate):
    def step(params, batch):
        return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, batch))
    return jax.jit(step)
""",
    "static arguments": """
import jax
import jax.numpy as jnp
from functools import partial
@partial(jax.jit, static_argnums=(1, 2))
def pad(x, size, mode):
    if mode == "zeros":
        return jnp.zeros(size)
    return x
""",
    "layers that are built in a loop": """
import torch.nn as nn
class Net(nn.Module):
    def __init__(self, widths):
        super().__init__()
        layers = []
        for a, b in zip(widths[:-1], widths[1:]):
            layers.append(nn.Linear(a, b))
        self.layers = nn.Sequential(*layers)
""",
    "a new model for every fold": """
import torch
from torch import nn
def folds(data, epochs):
    for fold in data:
        model = nn.Linear(3, 1)
        opt = torch.optim.Adam(model.parameters())
        for epoch in range(epochs):
            for x in fold:
                opt.zero_grad()
                model(x).mean().backward()
                opt.step()
""",
    "the cache is emptied after running out of memory": """
import torch
def run(model, batches):
    out = []
    for batch in batches:
        try:
            with torch.no_grad():
                out.append(model(batch))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    return out
""",
    "a cache of what depends on the size only": """
import torch
class Mask:
    def __init__(self):
        self.cache = {}
    def causal(self, x):
        key = (x.shape[1], x.device)
        if key not in self.cache:
            self.cache[key] = torch.ones(x.shape[1], x.shape[1], device=x.device).tril()
        return self.cache[key]
""",
    "an evaluation under no_grad by its caller": """
import torch
def evaluate(model, loader):
    return torch.stack([model(x).mean() for x in loader]).mean()
def report(model, loader):
    model.eval()
    with torch.no_grad():
        return evaluate(model, loader)
""",
    "an attack that needs gradients of its input": """
import torch
def attack(model, x, y, steps):
    for _ in range(steps):
        x = x.detach().requires_grad_(True)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        (gradient,) = torch.autograd.grad(loss, x)
        with torch.no_grad():
            x = x + 0.01 * gradient.sign()
    return x
""",
    "accumulation that steps for the tail": """
import torch
def train(model, loader, opt, n):
    for i, x in enumerate(loader):
        (model(x).mean() / n).backward()
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
    opt.step()
    opt.zero_grad()
""",
    "keys that are split": """
import jax
def sample(key, n):
    out = []
    for _ in range(n):
        key, sub = jax.random.split(key)
        out.append(jax.random.normal(sub, (3,)))
    return out
""",
    "keys in branches": """
import jax
def draw(key, kind):
    if kind == "normal":
        return jax.random.normal(key, (3,))
    return jax.random.uniform(key, (3,))
""",
    "a device that is asked for": """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.zeros(3, device=device)
model = torch.nn.Linear(3, 3).to("cuda") if torch.cuda.is_available() else None
""",
    "random numbers on the host on purpose": """
import torch
def noise(n, device, generator):
    return torch.randn(n, generator=generator).to(device)
""",
    "a name that is deleted and bound again": """
import torch
def run(model, batches):
    out = None
    for batch in batches:
        out = model(batch)
        del out
        out = model(batch)
    return out
""",
    "a generation that reads what it has made": """
import torch
def generate(model, tokens, n):
    for _ in range(n):
        new = model(tokens)[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, new], dim=1)
    return tokens
""",
    "a clock around a wait": """
import time
import torch
def seconds(model, x, n):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        model(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / n
""",
    "gradients that are accumulated by two backward passes": """
import torch
def step(model, batches, opt):
    for x in batches:
        opt.zero_grad()
        out = model(x)
        out.mean().backward(retain_graph=True)
        out.std().backward()
        opt.step()
""",
    "weights that stay on the CPU": """
import torch
def inspect(path):
    state = torch.load(path, map_location="cpu", weights_only=True)
    return {key: value.shape for key, value in state.items()}
""",
    "a recurrence, which cannot be one call": """
import torch
def scan(x: torch.Tensor, cell, state):
    out = []
    for t in range(x.shape[0]):
        state = cell(x[t], state)
        out.append(state)
    return torch.stack(out)
""",
}


def names(text: str) -> set[str]:
    return {finding.name for finding in find_in(File("script.py", text, parse(text)), all_rules())}


@pytest.mark.parametrize(("expected", "text"), FAULTS, ids=[", ".join(sorted(n)) for n, _ in FAULTS])
def test_a_planted_fault_is_found(expected: set[str], text: str) -> None:
    assert names(text) == expected


ROOT = Path(__file__).parents[2]
SLOW = sorted((ROOT / "examples" / "slow").glob("*.py"))


planted = runpy.run_path(str(ROOT / "benchmarks" / "checking" / "planted_faults.py"))["planted"]


@pytest.mark.parametrize("script", SLOW, ids=lambda path: path.stem)
def test_every_planted_fault_of_a_slow_script_is_found_at_its_line(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    found = {(f.line, f.name) for f in find_in(File(script.name, text, parse(text)), all_rules())}
    missed = [
        fault
        for fault in planted(text)
        if not any((n, fault[2]) in found for n in range(fault[0], fault[1] + 1))
    ]
    assert planted(text)
    assert missed == []


@pytest.mark.parametrize("script", SLOW, ids=lambda path: path.stem)
def test_the_fast_twin_of_a_slow_script_has_no_findings(script: Path) -> None:
    text = (script.parents[1] / "fast" / script.name).read_text(encoding="utf-8")
    assert names(text) == set()


@pytest.mark.parametrize("what", SOUND)
def test_sound_code_is_not_reported(what: str) -> None:
    assert names(SOUND[what]) == set()
