"""The SLURM engine: every job is one task of a job array, submitted with submitit.

The tasks run with the environment of this process, in its folder, and write scripts, results and logs into
`slurm/` of the output folder, which must be on a file system that all nodes share. A preempted task is
requeued by SLURM; a task whose node fails is submitted again with that node excluded.
"""

from __future__ import annotations

import inspect
import math
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput, Missing, TargetFailed, first_line
from pinchpoint.studies.engines.engine import (
    MAX_TRIES,
    SOURCE,
    EngineConfig,
    OpenWorker,
    Outcome,
    answer_of,
    outcome_of,
)

JOB_NAME = "pinchpoint"
START_S = 300.0  # added to the time limit of a task, for the start of Python and the frameworks
POLL_S = 1.0
ASK_EVERY = 60  # polls; in between, only the results that tasks have written are looked for
_OURS = "cluster"  # the one option that is not a parameter of sbatch: slurm, or local for a trial run


@dataclass(frozen=True)
class _Work:
    """What a task runs."""

    open_worker: OpenWorker

    def __call__(self, job: Any) -> dict[str, Any]:
        with self.open_worker() as run:
            return answer_of(run, job)

    def checkpoint(self, job: Any) -> Any:
        """Called by submitit when SLURM preempts the task: run the same job when it is requeued."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


@dataclass
class _Task:
    index: int
    job: Any
    submission: Any = None
    tries: int = 0
    nodes: set[str] = field(default_factory=set)  # on which it failed


@contextmanager
def open_pool(config: EngineConfig, open_worker: OpenWorker) -> Iterator[SlurmPool]:
    """As `engine.open_pool`. The folder of scripts and logs is removed if no job was lost."""
    pool = SlurmPool(config, open_worker)
    try:
        yield pool
    finally:
        pool.close()


class SlurmPool:
    """Submits all jobs as one array, and yields them as their results appear."""

    def __init__(self, config: EngineConfig, open_worker: OpenWorker) -> None:
        import submitit

        self._config, self._work = config, _Work(open_worker)
        self._folder = folder_of(config)
        cluster = config.options.get(_OURS, "slurm")
        try:
            # A task that reaches its time limit would reach it again, so it is not requeued.
            self._executor = submitit.AutoExecutor(self._folder, cluster=cluster, slurm_max_num_timeout=0)
        except (RuntimeError, ValueError) as error:
            raise Missing(
                f"SLURM cannot be used here: {first_line(error).rstrip('.')}.",
                hint="Run it on a login node; --dry-run prints the script that would be submitted.",
            ) from error
        self._tasks: list[_Task] = []
        self._lost_any = False

    def run(self, jobs: Iterable[Any], *, limit_s: float) -> Iterator[Outcome]:
        """As `Pool.run`."""
        tasks = [_Task(index, job) for index, job in enumerate(jobs)]
        self._submit(tasks, limit_s)
        polls = 0
        while self._tasks:
            polls += 1
            ask = polls % ASK_EVERY == 0
            done = [task for task in self._tasks if task.submission.done(force_check=ask)]
            for task in done:
                self._tasks.remove(task)
                outcome = self._collect(task)
                if outcome is None:
                    self._submit([task], limit_s)
                else:
                    yield outcome
            if not done:
                time.sleep(POLL_S)

    def close(self) -> None:
        """Cancel the tasks that have not finished."""
        for task in self._tasks:
            task.submission.cancel()
        if not self._tasks and not self._lost_any:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _submit(self, tasks: list[_Task], limit_s: float) -> None:
        if not tasks:
            return
        excluded = {node for task in tasks for node in task.nodes}
        parameters = sbatch_parameters(self._config, limit_s, excluded)
        self._executor.update_parameters(
            timeout_min=parameters.pop("time"),
            **{f"slurm_{name}": value for name, value in parameters.items()},
        )
        with self._executor.batch():
            for task in tasks:
                task.tries += 1
                task.submission = self._executor.submit(self._work, task.job)
        self._tasks += tasks

    def _collect(self, task: _Task) -> Outcome | None:
        """Return the outcome of a task that has ended, or None if it must run again."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            return outcome_of(task.index, task.job, task.submission.result(), tries=task.tries)
        except (FailedJobError, UncompletedJobError) as error:
            self._lost_any = True
            info = task.submission.get_info()
            state = info.get("State", "")
            reason = f"the task ended as {state}" if state else first_line(error)
            if node := info.get("NodeList", ""):
                task.nodes.add(node)
            # A task that ran out of time or memory, or was cancelled by its user, would end so again.
            if task.tries < MAX_TRIES and not state.startswith(("TIMEOUT", "OUT_OF_ME", "CANCELLED")):
                return None
        failure = TargetFailed(
            f"It was lost after {task.tries} tries: {reason}.", hint=f"Read the logs in {self._folder}."
        )
        return Outcome(task.index, task.job, error=failure, tries=task.tries)


def folder_of(config: EngineConfig) -> Path:
    """Return the folder for scripts, results and logs."""
    if config.folder is None:
        raise BadInput(
            "The slurm engine needs a folder on a file system that all nodes share.",
            hint="Give the folder of the results with -o.",
        )
    return config.folder.absolute() / "slurm"


def script(config: EngineConfig, *, jobs: int, limit_s: float) -> str:
    """Return the text that `sbatch` would get for this many jobs. Needs submitit, but not SLURM."""
    from submitit.slurm import slurm

    folder = folder_of(config)
    command = shlex.join([sys.executable, "-u", "-m", "submitit.core._submit", str(folder)])
    parameters = sbatch_parameters(config, limit_s, set())
    if jobs > 1:
        parameters["map_count"] = jobs
    return slurm._make_sbatch_string(command=command, folder=folder, **parameters)


def sbatch_parameters(config: EngineConfig, limit_s: float, excluded: set[str]) -> dict[str, Any]:
    """Return the parameters of sbatch, as submitit names them; those of the user replace ours."""
    parameters: dict[str, Any] = {
        "job_name": JOB_NAME,
        "time": math.ceil((limit_s + START_S) / 60),
        "setup": [f"export PYTHONPATH={shlex.quote(str(SOURCE))}${{PYTHONPATH:+:$PYTHONPATH}}"],
    }
    if config.gpus:
        parameters["gpus_per_node"] = config.gpus
    if config.alone:
        parameters["exclusive"] = True
    if config.workers is not None:
        parameters["array_parallelism"] = config.workers
    if excluded:
        parameters["exclude"] = ",".join(sorted(excluded))
    known = _known_parameters()
    others: dict[str, str] = {}
    for key, value in config.options.items():
        name = key.replace("-", "_")
        if name == _OURS:
            continue
        if name == "time":
            parameters["time"] = _minutes(value)
        elif name in known:
            parameters[name] = value
        else:
            others[key.replace("_", "-")] = value
    if others:
        parameters["additional_parameters"] = others
    return parameters


def _known_parameters() -> set[str]:
    from submitit.slurm import slurm

    return set(inspect.signature(slurm._make_sbatch_string).parameters) - {"command", "folder", "map_count"}


def _minutes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(
            f"time={text} is not a number of minutes.", hint="Use, for example, --engine-option time=30."
        )
    return int(text)
