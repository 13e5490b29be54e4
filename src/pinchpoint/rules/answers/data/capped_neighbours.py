"""A neighbour search keeps at most 32 neighbours without saying so.

`radius` and `radius_graph` have `max_num_neighbors=32` by default and drop the rest: in a dense cloud or a
crystal, most edges are missing. State the number that is meant.

Bad:

    import torch
    from torch_geometric.nn import radius_graph

    def edges(positions, cutoff):
        return radius_graph(positions, r=cutoff)

Good:

    import torch
    from torch_geometric.nn import radius_graph

    def edges(positions, cutoff):
        return radius_graph(positions, r=cutoff, max_num_neighbors=512)
"""

from __future__ import annotations

from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, forwards

_POSITIONS = {"radius_graph": 4, "radius": 5}
_PACKAGES = ("torch_geometric.nn", "torch_geometric.nn.pool", "torch_cluster")


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        package, _, last = source.name(call.func).rpartition(".")
        if last not in _POSITIONS or package not in _PACKAGES or forwards(call):
            continue
        if argument(call, "max_num_neighbors", _POSITIONS[last]) is None:
            yield Match(call, {"name": last})


RULE = Rule(
    number=536,
    name="capped-neighbours",
    message="`{name}` keeps at most 32 neighbours per point by default and drops the rest.",
    hint="Pass max_num_neighbors with the number that is meant.",
    check=check,
)
