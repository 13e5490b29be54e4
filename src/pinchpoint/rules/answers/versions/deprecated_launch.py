"""Processes are started with torch.distributed.launch.

It is deprecated: `torchrun` starts them and passes the rank in the environment instead of `--local_rank`.

Bad:

    import subprocess
    import torch

    def start(script, processes):
        command = ["python", "-m", "torch.distributed.launch", f"--nproc_per_node={processes}", script]
        subprocess.run(command, check=True)

Good:

    import subprocess
    import torch

    def start(script, processes):
        command = ["torchrun", f"--nproc_per_node={processes}", script]
        subprocess.run(command, check=True)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method

_COMMAND = re.compile(r"^torch\.distributed\.launch$|-m torch\.distributed\.launch\b")


def check(source: Source) -> Iterator[Match]:
    if source.uses("torch") and "LOCAL_RANK" not in source.text:
        for call in source.calls:
            first = call.args[0] if method(call) == "add_argument" and call.args else None
            if isinstance(first, ast.Constant) and first.value in ("--local_rank", "--local-rank"):
                yield Match(call)
    if "distributed.launch" not in source.text:
        return
    for node in source.all(ast.Constant):
        if not isinstance(node.value, str) or not _COMMAND.search(node.value):
            continue
        parent = source.parents[node]
        # A docstring or a message is no command.
        if not isinstance(parent, ast.Expr) and "\n" not in node.value:
            yield Match(node)
    for node in source.all(ast.ImportFrom):
        if node.module == "torch.distributed" and any(alias.name == "launch" for alias in node.names):
            yield Match(node)


RULE = Rule(
    number=542,
    name="deprecated-launch",
    message="`torch.distributed.launch`, which passes --local_rank, is deprecated.",
    hint="Use torchrun, and read the rank from the environment variable LOCAL_RANK.",
    check=check,
)
