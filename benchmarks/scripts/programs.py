"""The programs of a benchmark: every Python file in a folder of its folder.

A program is one file, takes no arguments, makes random data, and needs no download. `packages` are the
libraries that it imports, `alone` says that no other program may use the card while it is measured: the
kernel search of cudnn.benchmark takes the memory that the card has left. `options` are those of its forecast,
from a line such as `# predict: --world-size 8`. The fields from `args` on are for ../sharded.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
DISTRIBUTIONS = importlib.metadata.packages_distributions()


@dataclass(frozen=True)
class Program:
    name: str  # language/gpt2_trainer
    path: Path
    about: str
    packages: tuple[str, ...]
    alone: bool
    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    ranks: tuple[int, int] | None = None  # runs as this rank of so many
    launcher: tuple[str, ...] = ()  # the command in front of the program, such as accelerate launch
    has_peers: bool = False  # is measured with processes for the other ranks, because torch needs them

    @property
    def framework(self) -> str:
        return "jax" if "jax" in self.packages or self.path.parent.name == "jax_programs" else "torch"


def read_program(path: Path) -> Program:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.partition(".")[0])
    options = re.search(r"^# predict: (.*)$", source, re.MULTILINE)
    return Program(
        name=f"{path.parent.name}/{path.stem}",
        path=path,
        about=(ast.get_docstring(tree) or "").partition("\n")[0],
        packages=tuple(sorted(modules)),
        alone="cudnn.benchmark = True" in source,
        options=tuple(shlex.split(options.group(1))) if options else (),
    )


def find_programs(only: str | None = None, folder: Path = HERE) -> list[Program]:
    """Return all programs, or those whose name or folder is in the comma-separated list `only`."""
    return choose([read_program(path) for path in sorted(folder.glob("[a-z]*/*.py"))], only)


def choose(programs: list[Program], only: str | None) -> list[Program]:
    if only is None:
        return programs
    wanted = {name.strip() for name in only.split(",")}
    chosen = [p for p in programs if wanted & {p.name, p.path.stem, p.path.parent.name}]
    unknown = wanted - {name for p in chosen for name in (p.name, p.path.stem, p.path.parent.name)}
    if unknown:
        raise SystemExit(
            f"There is no program or folder {', '.join(sorted(unknown))}.\n"
            f"  hint: Use names such as {programs[0].name} or {programs[0].path.parent.name}."
        )
    return chosen


def package_versions(programs: list[Program]) -> dict[str, str]:
    """Return the installed versions of the libraries that the programs import."""
    versions = {}
    for module in sorted({module for program in programs for module in program.packages}):
        for distribution in DISTRIBUTIONS.get(module, [])[:1]:
            versions[distribution] = importlib.metadata.version(distribution)
    return versions
