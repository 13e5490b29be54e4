"""XLA_FLAGS contains a flag that XLA does not know.

XLA ends the process when it meets an unknown flag. Flags come and go with versions; those of jaxlib 0.10
are known here. Flags of TPUs are not checked.

Bad:

    import os

    os.environ["XLA_FLAGS"] = "--xla_enable_fast_min_max_math=true"

    import jax

Good:

    import os

    os.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_min_max=true"

    import jax
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import get_close_matches

from pinchpoint.rules.answers.versions.known_names import XLA_FLAGS
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source


def check(source: Source) -> Iterator[Match]:
    if "XLA_FLAGS" not in source.text:
        return
    for node in source.all(ast.Constant):
        if not isinstance(node.value, str) or "--xla_" not in node.value or not _is_setting(source, node):
            continue
        for flag in re.findall(r"--(xla_\w+)", node.value):
            if flag not in XLA_FLAGS and not flag.startswith(("xla_tpu_", "xla_jf_", "xla_sc_")):
                near = get_close_matches(flag, XLA_FLAGS, n=1, cutoff=0.7)
                yield Match(node, {"flag": flag, "near": f" or use --{near[0]}" if near else ""})


def _is_setting(source: Source, node: ast.Constant) -> bool:
    """Whether a text is assigned, passed or joined; a docstring is not."""
    return not isinstance(source.parents[node], ast.Expr)


RULE = Rule(
    number=545,
    name="unknown-xla-flag",
    message="XLA does not know the flag `--{flag}` and ends the process.",
    hint="Remove the flag{near}.",
    check=check,
)
