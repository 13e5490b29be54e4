"""The SLURM engine, with stand-ins for sbatch, srun, sacct and scancel that run tasks on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("submitit", reason="the extra `slurm` is not installed")

from pinchpoint.cli.main import run as run_command
from pinchpoint.core.errors import BadInput, Missing, TargetFailed
from pinchpoint.studies.engines import slurm_pool
from pinchpoint.studies.engines.engine import EngineConfig, open_pool

# Each task is a background process; where it ends without a result, sacct reports the state in $STATE.
SBATCH = r"""#!/bin/bash
id=$((100 + $(ls "$SLURM_STANDIN" | grep -c sh)))
script="$SLURM_STANDIN/$id.sh"
cp "${@: -1}" "$script"
export SLURM_JOB_ID=$id SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0
export SLURM_JOB_NODELIST=node1 SLURM_NODELIST=node1
run() {
  bash "$script" && state=COMPLETED || state=$STATE
  echo "$1|$state|node1" >> "$SLURM_STANDIN/states"
}
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$script")
if [ -z "$last" ]; then
  run "$id" >/dev/null 2>&1 &
else
  for task in $(seq 0 "$last"); do
    SLURM_ARRAY_JOB_ID=$id SLURM_ARRAY_TASK_ID=$task run "${id}_$task" >/dev/null 2>&1 &
  done
fi
echo "Submitted batch job $id"
"""
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do case $1 in --output|--error) shift 2;; *) shift;; esac; done
exec "$@"
"""
SACCT = """#!/bin/bash
echo "JobID|State|NodeList"; cat "$SLURM_STANDIN/states" 2>/dev/null
"""
SCANCEL = """#!/bin/bash
echo "$@" >> "$SLURM_STANDIN/cancelled"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch) -> Path:
    """Returns the folder in which the stand-ins keep the submitted scripts."""
    commands, kept = tmp_path / "bin", tmp_path / "kept"
    commands.mkdir()
    kept.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", SACCT), ("scancel", SCANCEL)):
        (commands / name).write_text(text, encoding="utf-8")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STANDIN", str(kept))
    monkeypatch.setenv("STATE", "NODE_FAIL")
    monkeypatch.setattr(slurm_pool, "POLL_S", 0.1)
    monkeypatch.setattr(slurm_pool, "ASK_EVERY", 2)
    return kept


def squares(died: Path):
    """Opens a worker that squares, raises at 3, and kills itself at 2 while `died` does not exist."""

    @contextmanager
    def open_worker():
        def run(job: int) -> int:
            if job == 2 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if job == 3:
                raise BadInput("Three is not a size.", hint="Use another.")
            return job * job

        yield run

    return open_worker


@pytest.mark.slow
def test_jobs_are_tasks_of_an_array_and_a_lost_one_is_submitted_to_another_node(slurm: Path, tmp_path: Path):
    config = EngineConfig("slurm", workers=2, gpus=1, options={"partition": "gpu"}, folder=tmp_path / "out")
    with open_pool(config, squares(tmp_path / "died")) as pool:
        outcomes = sorted(pool.run([1, 2, 3], limit_s=600), key=lambda outcome: outcome.index)
    assert [outcome.value for outcome in outcomes] == [1, 4, None]
    assert [outcome.tries for outcome in outcomes] == [1, 2, 1]
    assert isinstance(outcomes[2].error, BadInput) and outcomes[2].error.hint == "Use another."
    array, again = (path.read_text(encoding="utf-8") for path in sorted(slurm.glob("*.sh")))
    assert "#SBATCH --array=0-2%2" in array and "--exclude" not in array
    assert "#SBATCH --partition=gpu" in array and "#SBATCH --gpus-per-node=1" in array
    assert "#SBATCH --time=15" in array  # 600 s of work and 300 s to start
    assert "#SBATCH --exclude=node1" in again and "--array" not in again


@pytest.mark.slow
def test_a_task_that_ran_out_of_time_is_not_repeated(slurm: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("STATE", "TIMEOUT")
    with open_pool(EngineConfig("slurm", folder=tmp_path / "out"), squares(tmp_path / "died")) as pool:
        (outcome,) = pool.run([2], limit_s=60)
    assert isinstance(outcome.error, TargetFailed) and "ended as TIMEOUT" in outcome.error.what
    assert len(list(slurm.glob("*.sh"))) == 1
    assert (tmp_path / "out" / "slurm").is_dir()  # the logs are kept


def test_tasks_that_still_wait_are_cancelled(slurm: Path, tmp_path: Path, monkeypatch):
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    @contextmanager
    def open_worker():
        yield lambda job: job

    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 7\n", encoding="utf-8")
    monkeypatch.setattr("time.sleep", stop)
    with (
        pytest.raises(KeyboardInterrupt),
        open_pool(EngineConfig("slurm", folder=tmp_path), open_worker) as pool,
    ):
        list(pool.run([1, 2], limit_s=60))
    assert [line.split()[0] for line in (slurm / "cancelled").read_text().splitlines()] == ["7_0", "7_1"]


def test_a_dry_run_prints_a_script_that_bash_accepts_and_writes_nothing(tmp_path: Path, capsys):
    command = ["study", "field", "--sizes", "5k:1M:6", "--modes", "train", "--on", "cuda"]
    options = ["--engine", "slurm", "--engine-option", "partition=gpu", "--engine-option", "nice=10"]
    options += ["--engine-option", "time=90", "--workers", "4"]
    assert run_command([*command, *options, "-o", str(tmp_path / "out"), "--dry-run"]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --array=0-5%4" in script
    assert "#SBATCH --gpus-per-node=1" in script
    assert "#SBATCH --time=90" in script and "#SBATCH --nice=10" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--engine", "slurm", "--dry-run"], 2, "needs a folder"),
        (["--engine", "ray", "--dry-run", "-o", "out"], 2, "the engine is ray"),
        (["--dry-run"], 2, "--dry-run needs a cluster"),
        (["--engine", "slurm", "-o", "out", "--dry-run", "--engine-option", "time=1:00:00"], 2, "minutes"),
    ],
)
def test_dry_runs_that_cannot_be_are_refused(options, code, says, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pinchpoint.studies.engines.engine.find_spec", lambda package: object())
    assert run_command(["study", "field", "--sizes", "5k:1M:6", *options]) == code
    assert says in capsys.readouterr().err


def test_without_slurm_the_error_says_so(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="SLURM cannot be used here"):
        open_pool(EngineConfig("slurm", folder=tmp_path), squares(tmp_path)).__enter__()
