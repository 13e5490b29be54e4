"""The Ray engine: one actor per worker, on an existing cluster or on one started on this machine.

A job whose worker or node dies runs again, on another node if there is one. So does a job that misses
something on its node, such as a GPU or a package; that node gets no further jobs while others are left.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pinchpoint.core.errors import BadInput, Missing, TargetFailed, first_line
from pinchpoint.core.machine import describe
from pinchpoint.studies.engines.engine import (
    MAX_TRIES,
    SOURCE,
    EngineConfig,
    OpenWorker,
    Outcome,
    answer_of,
    outcome_of,
)

START_S = 120.0  # the time that a cluster has to start a worker while no job runs
_OPTIONS = ("address", "cpus")


class _Host:
    """The actor: a worker process on some node."""

    def __init__(self, open_worker: OpenWorker, folder: str) -> None:
        if os.path.isdir(folder):
            os.chdir(folder)  # so that relative paths of targets mean the same
        self._open_worker = open_worker
        self._stack = ExitStack()
        self._run: Any = None

    def describe(self) -> tuple[str, str | None]:
        """Return the node, and the version of pinchpoint on it."""
        import ray

        return ray.get_runtime_context().get_node_id(), describe()["versions"].get("pinchpoint")

    def work(self, job: Any) -> dict[str, Any]:
        if self._run is None:
            self._run = self._stack.enter_context(self._open_worker())
        return answer_of(self._run, job)


@dataclass
class Task:
    """A job, the nodes on which it was tried in vain, and how often it was tried."""

    index: int
    job: Any
    nodes: set[str] = field(default_factory=set)
    tries: int = 0


@dataclass
class Worker:
    """An actor. reference: its answer, while one is expected. node: None until it has started."""

    actor: Any
    reference: Any
    node: str | None = None
    task: Task | None = None


@contextmanager
def open_pool(config: EngineConfig, open_worker: OpenWorker) -> Iterator[RayPool]:
    """As `engine.open_pool`. Uses the Ray of this process if it is initialized."""
    import ray

    for name in config.options:
        if name not in _OPTIONS:
            raise BadInput(
                f"The ray engine has no option {name!r}.", hint=f"Its options are {' and '.join(_OPTIONS)}."
            )
    started = not ray.is_initialized()
    if started:
        _connect(config)
    pool = RayPool(config, open_worker)
    try:
        yield pool
    finally:
        pool.close()
        if started:
            ray.shutdown()


def _connect(config: EngineConfig) -> None:
    import ray

    address = config.options.get("address")
    # Ray accepts a size only for a cluster that starts here.
    size = {"num_cpus": config.workers, "include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **size)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"The Ray cluster at {address or 'its default address'} cannot be reached: "
            f"{first_line(error).rstrip('.')}.",
            hint="Start it with `ray start --head`, or use --engine-option address=local.",
        ) from error


class RayPool:
    """Gives jobs to workers as they become free, and replaces workers that died."""

    def __init__(self, config: EngineConfig, open_worker: OpenWorker) -> None:
        self._config = config
        self._open_worker = open_worker
        self._cpus = _number(config.options.get("cpus", "1"))
        self._workers: list[Worker] = []
        self._bad_nodes: set[str] = set()
        self._failed_starts = 0
        self._places: list[str] = _nodes() if config.alone else []
        slots = config.workers or _slots(config, self._cpus, len(self._places))
        self._count = min(slots, config.jobs or slots)

    def run(self, jobs: Iterable[Any], *, limit_s: float) -> Iterator[Outcome]:
        """As `Pool.run`. Jobs end themselves at their time limit."""
        import ray

        del limit_s

        source = enumerate(jobs)
        lost: list[Task] = []
        more = True
        while True:
            for worker in [w for w in self._workers if w.reference is None]:
                task = next_lost(lost, worker, self._workers)
                if task is None and more and not self._is_avoided(worker):
                    index, job = next(source, (-1, None))
                    more = index >= 0
                    task = Task(index, job) if more else None
                if task is not None:
                    task.tries += 1
                    worker.task, worker.reference = task, worker.actor.work.remote(task.job)
            busy = [w for w in self._workers if w.task is not None]
            if not (busy or lost or more):
                return
            self._start_workers()
            references = {w.reference: w for w in self._workers if w.reference is not None}
            ready, _ = ray.wait(list(references), num_returns=1, timeout=None if busy else START_S)
            if not ready:
                self._give_up_waiting(lost)
            for reference in ready:
                worker = references[reference]
                outcome = self._collect(worker)
                if outcome is not None:
                    yield outcome
                elif worker.task is not None:
                    lost.append(worker.task)
                worker.task = None

    def close(self) -> None:
        """End all workers; the processes that they started end with them."""
        import ray

        for worker in self._workers:
            ray.kill(worker.actor)
        self._workers.clear()

    def _start_workers(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
        while len(self._workers) < self._count:
            strategy: Any = "SPREAD"
            if self._places:
                place = self._places[len(self._workers) % len(self._places)]
                strategy = NodeAffinitySchedulingStrategy(place, soft=True)
            options: dict[str, Any] = {
                "num_cpus": self._cpus,
                "num_gpus": self._config.gpus,
                "scheduling_strategy": strategy,
                "max_restarts": 0,
                "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
            }
            actor_class: Any = ray.remote(_Host)
            actor = actor_class.options(**options).remote(self._open_worker, os.getcwd())
            self._workers.append(Worker(actor, actor.describe.remote()))

    def _collect(self, worker: Worker) -> Outcome | None:
        """Read a worker's answer. None if it has only started, or if its job must run again."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            answer: Any = ray.get(worker.reference)
        except RayError as error:
            if isinstance(error, RayTaskError) and worker.node is not None:
                raise  # a bug of ours, which would happen on every node
            return self._bury(worker, first_line(error))
        worker.reference = None
        task = worker.task
        if task is None:
            self._welcome(worker, *answer)
            return None
        outcome = outcome_of(task.index, task.job, answer, tries=task.tries)
        if isinstance(outcome.error, Missing) and worker.node is not None:
            self._bad_nodes.add(worker.node)
            task.nodes.add(worker.node)
            if any(other_place(w, task) for w in self._workers):
                return None
        return outcome

    def _welcome(self, worker: Worker, node: str, version: str | None) -> None:
        worker.node, self._failed_starts = node, 0
        ours = describe()["versions"].get("pinchpoint")
        if version != ours:
            raise BadInput(
                f"A node of the Ray cluster has pinchpoint {version}, but this is {ours}.",
                hint="Install the same version on all nodes.",
            )

    def _bury(self, worker: Worker, reason: str) -> Outcome | None:
        """Remove a worker that died. Return an outcome if its job has been tried often enough."""
        self._workers.remove(worker)
        task = worker.task
        if task is None:
            self._failed_starts += 1
            if self._failed_starts > self._count + MAX_TRIES:
                raise Missing(
                    f"No worker can start on the Ray cluster: {reason.rstrip('.')}.",
                    hint="Install pinchpoint and the target's packages on all nodes of the cluster.",
                )
            return None
        if worker.node is not None:
            task.nodes.add(worker.node)
        if task.tries < MAX_TRIES:
            return None
        error = TargetFailed(
            f"Its worker died {task.tries} times, the last time with: {reason.rstrip('.')}.",
            hint="Look at the logs of the Ray cluster.",
        )
        return Outcome(task.index, task.job, error=error, tries=task.tries)

    def _is_avoided(self, worker: Worker) -> bool:
        """Whether the worker's node has let down a job, and other nodes are left."""
        return worker.node in self._bad_nodes and any(w.node not in self._bad_nodes for w in self._workers)

    def _give_up_waiting(self, lost: list[Task]) -> None:
        """No worker started for a while: use those that there are, or raise if there are none."""
        if not any(w.reference is None for w in self._workers):
            import ray

            room = ", ".join(f"{count:g} {name}" for name, count in _room(ray.available_resources()).items())
            raise Missing(
                f"No worker started on the Ray cluster within {START_S:g} s; its free resources are"
                f" {room or 'none'}, and a worker needs {self._cpus:g} CPU and {self._config.gpus} GPU.",
                hint="Wait until the cluster has room, or start a larger one.",
            )
        self._bad_nodes.clear()
        for task in lost:
            task.nodes.clear()


def next_lost(lost: list[Task], worker: Worker, workers: list[Worker]) -> Task | None:
    """Take a lost job that this worker may run: on another node than before, unless there is no other."""
    for task in lost:
        if other_place(worker, task) or not any(other_place(w, task) for w in workers):
            lost.remove(task)
            return task
    return None


def other_place(worker: Worker, task: Task) -> bool:
    """Whether the worker is, or may yet start, on a node on which the job was not tried."""
    return worker.node not in task.nodes


def _nodes() -> list[str]:
    import ray

    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


def _slots(config: EngineConfig, cpus: float, places: int) -> int:
    """Return how many workers the cluster has room for, free or not; at least one."""
    import ray

    room = _room(ray.cluster_resources())
    slots = int(room.get("CPU", 0) / cpus) if cpus else 1
    if config.gpus:
        slots = min(slots, int(room.get("GPU", 0) / config.gpus))
    return max(1, min(slots, places or slots))


def _room(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: resources[name] for name in ("CPU", "GPU") if name in resources}


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise BadInput(f"cpus={text} is not a number of CPUs.", hint="Use --engine-option cpus=1.")
    return value
