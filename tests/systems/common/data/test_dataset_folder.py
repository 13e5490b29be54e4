"""Dataset folders: complete files only, resumed where they stopped, and verified when they are read."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.systems.common.data import dataset_folder as samples
from pinchpoint.systems.common.data import workers
from pinchpoint.systems.common.data.workers import Program, run_workers

IDENTITY = {"format": "squares", "seed": 0}
SQUARES = """
import os
from pinchpoint.systems.common.data.workers import serve_pipes
def make(order):
    print("a library that prints")
    if order["number"] < 0:
        os._exit(7)
    return f"{order['number'] ** 2} {order['seed']} {os.environ['OPENBLAS_NUM_THREADS']}".encode()
if __name__ == "__main__":
    serve_pipes(make)
"""


@dataclass(frozen=True)
class Order:
    name: str
    number: int
    seed: int = 0


def look(data: bytes, where: str) -> samples.SampleInfo:
    try:
        square, seed, _ = data.split()
    except ValueError:
        raise BadInput(f"{where} is not a square", hint="make it again") from None
    return samples.SampleInfo(f"square-{int(square) ** 0.5:.0f}", {"seed": int(seed)}, {"faults": []})


KIND = samples.Kind(
    "squares", "squares data", "square", "squares", "square-*.npz", frozenset({"sha256", "faults"}), look
)
ORDERS = [Order(f"square-{n}", n) for n in range(5)]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "squares_program.py").write_text(SQUARES, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    return Program("squares_program", "squares", hint="ask for fewer")


def add(folder: Path, todo: list[Order], entries: samples.Entries, progress=None) -> list[str]:
    """Create the samples in `todo` in this process; return their names."""
    names: list[str] = []

    def make():
        for order in todo:
            names.append(order.name)
            yield order, f"{order.number**2} {order.seed} 1".encode()

    samples.add_samples(
        folder,
        KIND,
        entries,
        make,
        missing=len(todo),
        total=len(ORDERS),
        progress=progress,
        save=lambda: samples.write_index(
            folder, KIND, IDENTITY, entries, [o.name for o in ORDERS], {"all": sorted(entries)}
        ),
    )
    return names


def test_samples_are_the_same_for_any_number_of_processes_with_one_thread_each(program: Program) -> None:
    for jobs in (1, 3):
        results = dict(run_workers(program, ORDERS, jobs=jobs))
        assert results == {order: f"{order.number**2} 0 1".encode() for order in ORDERS}


def test_a_process_that_dies_is_reported_with_its_sample_and_a_hint(program: Program) -> None:
    with pytest.raises(
        TargetFailed, match=r"A process that makes squares ended: a library that prints \(bad\)"
    ) as excinfo:
        list(run_workers(program, [Order("bad", -1)], jobs=1))
    assert excinfo.value.hint == "ask for fewer"


def test_no_process_outlives_the_iteration(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    start = workers._start
    monkeypatch.setattr(workers, "_start", lambda *args: processes.append(start(*args)) or processes[-1])
    iteration = run_workers(program, ORDERS, jobs=2)
    next(iteration)
    iteration.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(processes) == 2 and all(process.poll() is not None for process in processes)


def test_a_stopped_dataset_keeps_complete_files_and_says_what_is_missing(tmp_path: Path) -> None:
    def stop(count: int, total: int) -> None:
        if count == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add(tmp_path, ORDERS, {}, stop)
    index = samples.read_index(tmp_path, KIND)
    assert (index["wanted"], index["missing"], sorted(index["squares"])) == (5, 3, ["square-0", "square-1"])
    with (
        pytest.raises(BadInput, match="3 of 5 squares are missing") as excinfo,
        samples.finished_index(tmp_path, KIND),
    ):
        pass
    assert "pinchpoint squares data" in excinfo.value.hint
    entries = samples.existing_samples(tmp_path, KIND, IDENTITY)
    assert add(tmp_path, [order for order in ORDERS if order.name not in entries], entries) == [
        "square-2",
        "square-3",
        "square-4",
    ]


def test_a_missing_or_damaged_index_is_rebuilt_from_complete_files(tmp_path: Path) -> None:
    add(tmp_path, ORDERS, {})
    whole = samples.existing_samples(tmp_path, KIND, IDENTITY)
    assert whole["square-3"] == {"sha256": hashlib.sha256(b"9 0 1").hexdigest(), "faults": []}
    (tmp_path / "square-4.npz").write_bytes(b"cut")
    (tmp_path / "square-2.npz").rename(tmp_path / "square-7.npz")  # a complete file under another name
    for text in (None, "{", json.dumps({"format": "other"})):
        (tmp_path / samples.INDEX).unlink(missing_ok=True)
        if text is not None:
            (tmp_path / samples.INDEX).write_text(text, encoding="utf-8")
        entries = samples.existing_samples(tmp_path, KIND, IDENTITY)
        assert entries == {name: whole[name] for name in ("square-0", "square-1", "square-3")}


def test_samples_of_another_dataset_are_refused_with_and_without_an_index(tmp_path: Path) -> None:
    add(tmp_path, ORDERS, {})
    for _ in range(2):
        with pytest.raises(BadInput, match="made with seed=0, not 1"):
            samples.existing_samples(tmp_path, KIND, IDENTITY | {"seed": 1})
        (tmp_path / samples.INDEX).unlink(missing_ok=True)


def test_reading_a_dataset_of_another_system_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"format": "pinchpoint cloud data"}', encoding="utf-8")
    with (
        pytest.raises(BadInput, match="holds another kind of dataset: 'pinchpoint cloud data'") as excinfo,
        samples.finished_index(tmp_path, KIND),
    ):
        pass
    assert excinfo.value.hint == "Name a folder that `squares data` made."


def test_a_file_that_differs_from_the_index_is_refused_unless_checks_are_off(tmp_path: Path) -> None:
    entries: samples.Entries = {}
    add(tmp_path, ORDERS, entries)
    assert samples.read_sample(tmp_path, KIND, entries, "square-2", check=True) == b"4 0 1"
    (tmp_path / "square-2.npz").write_bytes(b"5 0 1")
    with pytest.raises(BadInput, match="sha256 differs from that of the index"):
        samples.read_sample(tmp_path, KIND, entries, "square-2", check=True)
    assert samples.read_sample(tmp_path, KIND, entries, "square-2", check=False) == b"5 0 1"
    with pytest.raises(BadInput, match="has no square 'square-9'"):
        samples.read_sample(tmp_path, KIND, entries, "square-9", check=True)


@pytest.mark.parametrize(
    ("jobs", "free_bytes", "device", "count"),
    [
        (None, 100, "cpu", 4),
        (None, 39, "cpu", 3),
        (None, 10, "cpu", 1),
        (2, 100, "cpu", 2),
        (8, 0, "cuda", 1),
    ],
)
def test_as_many_processes_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, jobs: int | None, free_bytes: int, device: str, count: int
) -> None:
    monkeypatch.setattr(samples, "cores", lambda: 4)
    monkeypatch.setattr(samples, "free_bytes", lambda: free_bytes)
    processes = samples.count_processes(jobs, need_bytes=10, what="A room takes", hint="-", device=device)
    assert processes == count


def test_a_sample_that_exceeds_the_free_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "free_bytes", lambda: 9)
    with pytest.raises(BadInput, match="A room takes 10 B to make, but only 9 B of memory are free"):
        samples.count_processes(2, need_bytes=10, what="A room takes", hint="Make fewer points.")


def test_the_shared_modules_need_no_framework() -> None:
    code = (
        "import sys; import pinchpoint.systems.common.data.dataset_folder;"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
