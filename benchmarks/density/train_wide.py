"""Train the packaged weights of molecules: a fixed time on a GPU, with each step as one CUDA graph.

    python benchmarks/density/train_wide.py DATA -o molecules.pt --seconds 160

All structures are padded to the same number of atoms, edges and probes, so that a step (the model, its
gradients, AdamW and the averaged weights) is captured once and replayed: an eager step of this small network
spends its time on launching kernels. The learning rate follows the clock: a short rise, then a cosine. The
loss, the data and the model are those of `pinchpoint density train`; a few geometries are held back to report
an error. Without a GPU, or if a capture fails, the steps are eager.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.records import now
from pinchpoint.systems.common.training.weight_files import write_weights
from pinchpoint.systems.density.data.batches import Item, item_of
from pinchpoint.systems.density.data.domain import merge_domains, sample_domain
from pinchpoint.systems.density.data.sample import Sample, sample_of, unpack
from pinchpoint.systems.density.model import atom_network
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.training.training_step import new_model, nmae, values_at
from pinchpoint.systems.density.training.weights import FORMAT

WARMUP = 0.04  # fraction of the time
EAGER_STEPS = 5  # before a capture
LOWEST = 0.005  # of the learning rate, at the end


@dataclass(frozen=True, eq=False)
class Stack:
    """All structures, padded. S structures, A atoms, E edges, P probes."""

    species: Tensor  # (S, A)
    positions: Tensor  # (S, A, 3); padded atoms are far away
    source: Tensor  # (S, E)
    destination: Tensor  # (S, E)
    vectors: Tensor  # (S, E, 3); padded edges are longer than the cutoff
    probes: Tensor  # (S, P, 3)
    values: Tensor  # (S, P)
    weights: Tensor  # (S, P)


def stack_of(items: list[Item], config: DensityConfig, device: str) -> Stack:
    """Return the items padded to common sizes."""
    atoms = max(len(item.atoms.species) for item in items)
    edges = max(len(item.atoms.source) for item in items)
    far = 2 * config.cutoff_a

    def pad(values: Tensor, size: int, value: float) -> Tensor:
        full = values.new_full((size, *values.shape[1:]), value)
        full[: len(values)] = values
        return full

    def stack(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
        return torch.stack(parts).to(device=device, dtype=dtype)

    return Stack(
        stack([pad(item.atoms.species, atoms, 0) for item in items], torch.int64),
        stack([pad(item.images, atoms, 1e3) for item in items], torch.float32),
        stack([pad(item.atoms.source, edges, 0) for item in items], torch.int64),
        stack([pad(item.atoms.destination, edges, 0) for item in items], torch.int64),
        stack([pad(item.atoms.vectors, edges, far) for item in items], torch.float32),
        stack([item.probes for item in items], torch.float32),
        stack([item.values[:, 0] for item in items], torch.float32),
        stack([item.weights for item in items], torch.float32),
    )


def loss_of(model: DensityModel, data: Stack, chosen: Tensor, probes: Tensor) -> Tensor:
    """Return the mean error per electron. chosen: (B,) structures; probes: (B, p), some probes of each."""
    batch, atoms = len(chosen), data.species.shape[1]
    first = torch.arange(batch, device=chosen.device)[:, None] * atoms
    graph = AtomGraph(
        data.species[chosen].reshape(-1),
        (data.source[chosen] + first).reshape(-1),
        (data.destination[chosen] + first).reshape(-1),
        data.vectors[chosen].reshape(-1, 3),
    )
    neighbours = torch.arange(batch * atoms, device=chosen.device).view(batch, atoms)
    points = data.probes[chosen[:, None], probes]
    vectors = points[:, :, None] - data.positions[chosen][:, None]
    # A padded atom is 1,000 angstrom away; its distance is reduced, so that no square overflows.
    vectors = vectors.clamp(-4 * model.config.cutoff_a, 4 * model.config.cutoff_a)
    output = model(model.fields(graph), graph.species, neighbours, vectors)[..., 0]
    error = (output - data.values[chosen[:, None], probes]).abs() * data.weights[chosen[:, None], probes]
    return error.sum() * (data.probes.shape[1] / (probes.shape[1] * batch))


class Trainer:
    """A model, its optimizer and its averaged weights, whose step can be captured."""

    def __init__(self, model: DensityModel, data: Stack, args: argparse.Namespace, device: str) -> None:
        self.model, self.data, self.args, self.device = model, data, args, device
        self.averaged = deepcopy(model)
        self.rate = torch.tensor(0.02 * args.lr, device=device)  # until `train` sets it
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=self.rate, weight_decay=args.weight_decay, capturable=device == "cuda"
        )
        self.chosen = torch.zeros(args.molecules, dtype=torch.int64, device=device)
        self.probes = torch.zeros(args.molecules, args.probes, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)
        self.graph: Any = None
        self.order = torch.zeros(0, dtype=torch.int64, device=device)

    def draw(self) -> None:
        """Draw the structures and probes of the next step; every structure comes once in a pass."""
        count = len(self.data.species)
        while len(self.order) < self.args.molecules:
            self.order = torch.cat([self.order, torch.randperm(count, device=self.device)])
        self.chosen.copy_(self.order[: self.args.molecules])
        self.order = self.order[self.args.molecules :]
        self.probes.copy_(torch.randint(self.data.probes.shape[1], self.probes.shape, device=self.device))

    def step(self) -> None:
        """Take one step with the drawn structures."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.model, self.data, self.chosen, self.probes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for mean, value in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(value, 1 - self.args.ema)
        self.loss.copy_(loss.detach())

    def capture(self) -> bool:
        """Capture the step as a CUDA graph, after some eager steps; return whether that worked."""
        if self.device != "cuda":
            return False
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(EAGER_STEPS):
                    self.draw()
                    self.step()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(graph):
                self.step()
            self.graph = graph
            return True
        except RuntimeError as error:
            print(f"no capture: {str(error)[:300]}", flush=True)
            return False

    def unbiased_average(self, steps: int) -> DensityModel:
        """Return the averaged weights without the share of the initial weights that is still in them."""
        share = self.args.ema ** (steps + (EAGER_STEPS if self.graph is not None else 0))
        first = new_model(self.model.config, seed=self.args.seed).to(self.device)
        with torch.no_grad():
            for mean, initial in zip(self.averaged.parameters(), first.parameters(), strict=True):
                mean.copy_((mean - share * initial) / (1 - share))
        return self.averaged

    def train(self, seconds: float) -> int:
        """Train for a time; return the number of steps."""
        start, steps = time.perf_counter(), 0
        shown = start
        while True:
            share = (time.perf_counter() - start) / seconds
            if share >= 1:
                return steps
            cosine = LOWEST + (1 - LOWEST) * (1 + math.cos(math.pi * share)) / 2
            self.rate.fill_(self.args.lr * cosine * min(1.0, (share + 1e-3) / WARMUP))
            self.draw()
            if self.graph is None:
                self.step()
            else:
                self.graph.replay()
            steps += 1
            if steps % 20 == 0:  # do not run ahead of the device: the schedule follows the clock
                value = float(self.loss)
                if time.perf_counter() - shown > seconds / 20:
                    shown = time.perf_counter()
                    print(f"{shown - start:6.1f} s, step {steps:6,}: loss {value:.5f}", flush=True)


def read_samples(folder: Path) -> list[Sample]:
    """Return the training samples of a folder of `density data --preset wide`, finished or not."""
    stored = [unpack(path.read_bytes(), where=str(path)) for path in sorted(folder.glob("*-*.npz"))]
    return [sample_of(one) for one in stored if one.order.kind == "probes" and not one.faults]


def add_by_atomics(messages: Tensor, destination: Tensor, count: int) -> Tensor:
    """Sum messages by destination, in the order in which threads finish: faster than the ordered sum."""
    return messages.new_zeros(count, *messages.shape[1:]).index_add(0, destination, messages)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=160)
    parser.add_argument("--mul", type=int, default=400)
    parser.add_argument("--lmax", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.007)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--molecules", type=int, default=32)
    parser.add_argument("--probes", type=int, default=512)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--validation", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    start = time.perf_counter()
    samples = read_samples(args.data)
    samples = [samples[at] for at in np.random.default_rng(args.seed).permutation(len(samples))]
    species = tuple(sorted({symbol for sample in samples for symbol in sample.species}))
    graphs = [item_of(sample, _config(species, args, 8.0)).atoms for sample in samples[:64]]
    mean = sum(len(graph.source) for graph in graphs) / sum(len(graph.species) for graph in graphs)
    config = _config(species, args, round(mean, 2))
    items = [item_of(sample, config) for sample in samples]
    held, kept = items[: args.validation], items[args.validation :]
    domain = None
    for sample in samples[args.validation :]:
        domain = merge_domains(domain, sample_domain(sample, reach_a=config.cutoff_a))
    assert domain is not None
    atom_network.sum_by_destination = add_by_atomics
    model = new_model(config, seed=args.seed).to(device).train()
    trainer = Trainer(model, stack_of(kept, config, device), args, device)
    captured = trainer.capture()
    print(f"{len(kept)} structures, captured: {captured}, {time.perf_counter() - start:.1f} s", flush=True)
    begin = time.perf_counter()
    steps = trainer.train(args.seconds)
    training_s = time.perf_counter() - begin
    averaged = trainer.unbiased_average(steps).to("cpu").eval()
    score = sum(nmae(values_at(averaged, item), item) for item in held) / len(held)
    print(f"{steps} steps in {training_s:.1f} s; held back: {score:.3%}", flush=True)
    origin = {
        "step": steps,
        "steps": steps,
        "seed": args.seed,
        "preset": "small",
        "precision": "fp32",
        "data_sha256": hashlib.sha256("\n".join(sorted(one.name for one in samples)).encode()).hexdigest(),
        "structures": len(kept),
        "held_back_nmae": score,
        "created": now(),
        "training_seconds": round(training_s),
        "parameters": sum(value.numel() for value in averaged.parameters()),
        "seen": json.loads(domain.to_json()),
    }
    write_weights(
        args.output,
        averaged.state_dict(),
        format=FORMAT,
        config=config.to_json(),
        about=origin,
        half=True,
        exact=("prior",),
    )


def _config(species: tuple[str, ...], args: argparse.Namespace, neighbours: float) -> DensityConfig:
    shape = {"mul": args.mul, "lmax": args.lmax, "mean_neighbours": neighbours}
    return DensityConfig.preset("small", species, prior=True, train_knots=0, **shape)


if __name__ == "__main__":
    main()
