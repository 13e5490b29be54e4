"""The workers of a DataLoader draw random numbers that no seed controls, or the same ones in every worker.

A generator that a dataset keeps (`self.rng`) is copied to every worker: all of them draw the same numbers.
Global generators are seeded from torch's seed, so that `np.random.seed` in the main process has no effect
on them. Seed in `worker_init_fn`, or call `torch.manual_seed`.

Bad:

    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Crops(Dataset):
        def __init__(self, images):
            self.images = images
            self.rng = np.random.default_rng(0)

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return np.roll(self.images[index], self.rng.integers(8))

    def loader(images):
        return DataLoader(Crops(images), batch_size=8, num_workers=4)

Good:

    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Crops(Dataset):
        def __init__(self, images):
            self.images = images

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return np.roll(self.images[index], np.random.default_rng(index).integers(8))

    def loader(images):
        return DataLoader(Crops(images), batch_size=8, num_workers=4)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.loaders import dataset_of, loaders, option
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument

_GENERATORS = frozenset(
    {"numpy.random.default_rng", "numpy.random.RandomState", "random.Random", "numpy.random.Generator"}
)


def check(source: Source) -> Iterator[Match]:
    for call in loaders(source):
        workers = option(call, "num_workers")
        if workers is None or (isinstance(workers, ast.Constant) and workers.value == 0):
            continue
        if argument(call, "worker_init_fn") is not None:
            continue
        dataset = dataset_of(source, call)
        get = _method(dataset, "__getitem__") if dataset is not None else None
        if dataset is None or get is None:
            continue
        if _keeps_generator(source, dataset, get):
            yield Match(call, {"how": f"every worker gets a copy of the generator of `{dataset.name}`"})
        else:
            for draw in _global_draws(source, get):
                yield Match(draw, {"how": "the seed of the main process has no effect on this generator"})


def _method(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next(
        (node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name), None
    )


def _keeps_generator(source: Source, owner: ast.ClassDef, get: ast.FunctionDef) -> bool:
    start = _method(owner, "__init__")
    if start is None:
        return False
    kept = {
        target.attr
        for node in source.walk(start)
        if isinstance(node, ast.Assign) and source.called(node.value) in _GENERATORS
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    return any(isinstance(node, ast.Attribute) and node.attr in kept for node in source.walk(get))


def _global_draws(source: Source, get: ast.FunctionDef) -> list[ast.Call]:
    """The draws of a dataset from the global generators of numpy and Python."""
    return [
        node
        for node in source.walk(get)
        if isinstance(node, ast.Call)
        and source.called(node).startswith(("numpy.random.", "random."))
        and source.called(node) not in _GENERATORS
    ]


RULE = Rule(
    number=523,
    name="unseeded-workers",
    message="Random numbers in the workers of the DataLoader are not seeded: {how}.",
    hint="Seed in worker_init_fn from torch.initial_seed(), or draw from a generator made of the index.",
    check=check,
)
