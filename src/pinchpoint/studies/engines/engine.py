"""What every engine offers: a pool of workers on other machines that runs independent jobs.

    with open_pool(EngineConfig("ray", workers=4), open_worker) as pool:
        for outcome in pool.run(jobs, limit_s=600):
            ...

Jobs are plain values that can be pickled. `open_worker` is called once in every worker process and returns
a context manager whose value is the function that runs a job. Outcomes arrive in the order in which the
jobs finish. A job whose worker or machine is lost runs again on another machine; an error that the job
itself raises is its outcome. The workers need this version of pinchpoint, and the target under the same
path, as on a shared file system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from pinchpoint.core.errors import BadInput, Missing, PinchpointError, from_dict, to_dict
from pinchpoint.core.units import show_choices

SOURCE = Path(__file__).resolve().parents[3]  # the folder that the workers import pinchpoint from
MAX_TRIES = 3  # a job that lost its worker this often is given up
_MODULES = {"ray": "ray_pool", "slurm": "slurm_pool"}
_PACKAGES = {"ray": "ray", "slurm": "submitit"}
ENGINES = ("local", *_MODULES)

RunJob = Callable[[Any], Any]
OpenWorker = Callable[[], AbstractContextManager[RunJob]]


@dataclass(frozen=True)
class EngineConfig:
    """name: ray or slurm. workers: jobs at one time; None uses what the cluster has.

    jobs: how many jobs there will be, so that no more workers start. gpus: per worker.
    alone: each worker has a machine to itself, so that CPU timings are not disturbed.
    options: for ray `address` and `cpus`; for slurm the parameters of sbatch, and `cluster`.
    folder: for slurm, a folder on a shared file system for scripts and logs.
    """

    name: str
    workers: int | None = None
    jobs: int | None = None
    gpus: int = 0
    alone: bool = False
    options: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of one job: its value, or the error if it failed. index: the job's place in `jobs`."""

    index: int
    job: Any
    value: Any = None
    error: PinchpointError | None = None
    tries: int = 1


class Pool(Protocol):
    """Runs jobs. Ray reads `jobs` only as far as there are free workers, so they may depend on outcomes.

    limit_s: the longest time that one job may take, which SLURM must know.
    """

    def run(self, jobs: Iterable[Any], *, limit_s: float) -> Iterator[Outcome]: ...


def read_engine(name: str, *, workers: int | None, options: Iterable[str]) -> EngineConfig | None:
    """Read the options of the command line. None for `local`, which has no workers elsewhere."""
    pairs: dict[str, str] = {}
    for text in options:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise BadInput(
                f"--engine-option {text!r} does not have the form KEY=VALUE.",
                hint="Write, for example, --engine-option partition=gpu.",
            )
        pairs[key] = value
    if name != "local":
        config = EngineConfig(name, workers=workers, options=pairs)
        check_engine(config)
        return config
    if workers is not None or pairs:
        raise BadInput(
            f"{'--workers' if workers is not None else '--engine-option'} needs a cluster.",
            hint="Use --engine ray or --engine slurm.",
        )
    return None


def check_engine(config: EngineConfig) -> None:
    """Raise if the engine is unknown or its package is not installed."""
    if config.name not in _MODULES:
        raise BadInput(f"There is no engine {config.name!r}.", hint=f"Use {show_choices(ENGINES)}.")
    if config.workers is not None and config.workers < 1:
        raise BadInput(
            f"--workers is {config.workers}, but must be at least 1.", hint="Leave it out, or raise it."
        )
    package = _PACKAGES[config.name]
    if find_spec(package) is None:
        raise Missing(
            f"The engine {config.name} needs the package {package!r}, which is not installed.",
            hint=f"Run `pip install 'pinchpoint[{config.name}]'`.",
        )


def open_pool(config: EngineConfig, open_worker: OpenWorker) -> AbstractContextManager[Pool]:
    """Open the pool of an engine. Leaving it ends the workers and cancels what still waits."""
    check_engine(config)
    return import_module(f"{__package__}.{_MODULES[config.name]}").open_pool(config, open_worker)


def answer_of(run: RunJob, job: Any) -> dict[str, Any]:
    """Run a job in a worker and return what is sent back; our errors lose their hints when pickled."""
    try:
        return {"value": run(job)}
    except PinchpointError as error:
        return to_dict(error)


def outcome_of(index: int, job: Any, answer: dict[str, Any], *, tries: int) -> Outcome:
    if "error" in answer:
        return Outcome(index, job, error=from_dict(answer), tries=tries)
    return Outcome(index, job, value=answer["value"], tries=tries)
