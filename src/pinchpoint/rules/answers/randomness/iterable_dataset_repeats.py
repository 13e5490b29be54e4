"""Every worker of a DataLoader goes through the whole iterable dataset.

An `IterableDataset` is copied to each worker. If `__iter__` does not ask `get_worker_info()` for its share,
every sample comes once per worker.

Bad:

    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Lines(IterableDataset):
        def __init__(self, path):
            self.path = path

        def __iter__(self):
            yield from open(self.path)

    def loader(path):
        return DataLoader(Lines(path), batch_size=8, num_workers=4)

Good:

    import itertools
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Lines(IterableDataset):
        def __init__(self, path):
            self.path = path

        def __iter__(self):
            worker = get_worker_info()
            yield from itertools.islice(open(self.path), worker.id, None, worker.num_workers)

    def loader(path):
        return DataLoader(Lines(path), batch_size=8, num_workers=4)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.loaders import loaders, option
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument


def check(source: Source) -> Iterator[Match]:
    if "IterableDataset" not in source.text or "worker" in source.text.replace("num_workers", ""):
        return
    iterable = {
        node.name
        for node in source.all(ast.ClassDef)
        if any(source.name(base).endswith("IterableDataset") for base in node.bases)
        and any(isinstance(step, ast.FunctionDef) and step.name == "__iter__" for step in node.body)
    }
    for call in loaders(source):
        workers, dataset = option(call, "num_workers"), argument(call, "dataset", 0)
        if isinstance(dataset, ast.Name):
            store = source.binding(dataset)
            dataset = source.assigned_value(store) if isinstance(store, ast.Name) else None
        several = isinstance(workers, ast.Constant) and isinstance(workers.value, int) and workers.value > 1
        if several and source.called(dataset) in iterable:
            yield Match(call, {"name": source.called(dataset)})


RULE = Rule(
    number=525,
    name="iterable-dataset-repeats",
    message="Every worker yields all samples of `{name}`, so that each comes several times.",
    hint="Ask torch.utils.data.get_worker_info() in __iter__ and yield the worker's share.",
    check=check,
)
