"""GPU requests for SLURM and Kubernetes: what a forecast knows, and nothing else."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.cards import card, cards
from pinchpoint.planning.gpu_request import gpu_request, launch_words, request_text

GIB = 2**30
FORECAST = Forecast(
    target="train.py",
    framework="torch",
    method="fake tensors",
    mode="train",
    size=None,
    variant=None,
    peak_allocated_bytes=18 * GIB,
    peak_reserved_bytes=19 * GIB,
    workspace_bytes=0,
    context_bytes=GIB // 2,
    total_bytes=19 * GIB + GIB // 2,
    breakdown={},
    lines=(),
    modules=(),
    timeline=(),
    fits={"rtx3080": False, "rtx4090": True, "h100": True},
    margin_bytes=GIB,
    card="h200",
    steps=2,
    needs_bytes=20 * GIB,
    machine={},
)
COMMAND = ("python", "train.py", "--name", "two words")


def text(forecast: Forecast, kind: str, **options) -> str:
    return request_text(gpu_request(forecast, command=COMMAND, **options), kind)


def directives(script: str) -> set[str]:
    return {line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")}


def test_one_process_asks_slurm_for_one_gpu_and_states_its_memory():
    script = text(FORECAST, "slurm", card_name=None)
    assert directives(script) == {"nodes=1", "ntasks-per-node=1", "gpus-per-node=1"}
    most = 20 * GIB + max(one.context_high_bytes for one in cards().values())
    assert f"needs at most {most / GIB:.2f} GiB of GPU memory, margin included" in script
    assert "smallest known card that fits is rtx4090" in script
    assert "srun python train.py --name 'two words'" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_sixteen_processes_ask_for_two_nodes_of_eight_and_start_torchrun_on_each():
    job = replace(FORECAST, world_size=16, rank=3, nccl_high_bytes=GIB, card="h100")
    script = text(job, "slurm", card_name="h100")
    assert directives(script) == {"nodes=2", "ntasks-per-node=1", "gpus-per-node=h100:8"}
    assert "torchrun --nnodes=2 --nproc-per-node=8" in script
    need = 21 * GIB + card("h100").context_high_bytes
    assert f"needs at most {need / GIB:.2f} GiB of GPU memory in each process" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    narrow = text(job, "slurm", card_name="h100", local_world_size=4)
    assert {"nodes=4", "gpus-per-node=h100:4"} <= directives(narrow)


def test_devices_of_one_jax_process_are_not_started_with_torchrun():
    script = text(replace(FORECAST, framework="jax", world_size=4), "slurm", card_name=None)
    assert "gpus-per-node=4" in directives(script)
    assert "torchrun" not in script and "srun python train.py" in script


def test_a_pod_asks_for_nodes_whose_label_guarantees_the_memory():
    yaml = pytest.importorskip("yaml")
    request = gpu_request(FORECAST, card_name=None, command=COMMAND)
    pod = yaml.safe_load(request_text(request, "kubernetes"))
    container = pod["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert container["command"] == list(COMMAND)
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    ((expression,),) = (term["matchExpressions"] for term in terms["nodeSelectorTerms"])
    assert (expression["key"], expression["operator"]) == ("nvidia.com/gpu.memory", "Gt")
    # The label is the nominal memory, of which CUDA reports at least 92 %.
    assert int(expression["values"][0]) * 2**20 * 0.92 >= request.need_bytes


def test_nothing_is_claimed_if_the_peak_may_be_higher():
    doubtful = replace(FORECAST, fits={"h200": None}, reasons=("line 3 is not modelled",))
    request = gpu_request(doubtful, card_name="h200", command=COMMAND)
    assert request.fits is None
    for kind in ("slurm", "kubernetes"):
        script = request_text(request, kind)
        assert "Unknown whether this suffices" in script and "line 3 is not modelled" in script
        assert "at most" not in script


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_what_a_forecast_does_not_know_is_left_to_the_user(kind):
    script = text(FORECAST, kind, card_name=None)
    assert re.search(r"# Not part of the forecast: .*memory of the host", script)
    assert not re.search(r"^#SBATCH --(mem|time|cpus)", script, re.MULTILINE)


def test_only_scripts_have_a_command():
    assert launch_words("train.py", ["--batch", "2"]) == ("python", "train.py", "--batch", "2")
    assert launch_words("-m pkg.train", []) == ("python", "-m", "pkg.train")
    assert launch_words("field", []) == ()


@pytest.fixture
def predicts(monkeypatch):
    """Makes `predict` return a forecast; returns the options of the call."""
    calls: dict[str, object] = {}

    def use(forecast: Forecast) -> dict[str, object]:
        def predict(target, **options):
            calls.update(options)
            return forecast

        monkeypatch.setattr("pinchpoint.forecasting.predict.predict", predict)
        return calls

    return use


def test_the_command_predicts_the_process_that_needs_most(predicts, capsys):
    calls = predicts(replace(FORECAST, world_size=8, rank=0, card="h100"))
    command = "plan train.py --request slurm --card h100 --world-size 8 -- --batch 4"
    assert run(command.split()) == 0
    assert (calls["rank"], calls["world_size"], calls["args"]) == ("all", 8, ["--batch", "4"])
    assert "train.py --batch 4" in capsys.readouterr().out


def test_a_request_that_is_not_known_to_suffice_exits_with_1(predicts, capsys):
    predicts(replace(FORECAST, fits={"h200": None}, reasons=("line 3 is not modelled",)))
    assert run(["plan", "train.py", "--request", "slurm", "--card", "h200"]) == 1
    assert "line 3 is not modelled" in capsys.readouterr().out
    predicts(replace(FORECAST, fits={"rtx4060": False, "rtx4090": True}, card="rtx4060"))
    assert run(["plan", "train.py", "--request", "slurm", "--card", "rtx4060"]) == 1
    output = capsys.readouterr()
    assert output.out == "" and "does not fit rtx4060" in output.err and "--card rtx4090" in output.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--request lsf", "no request for 'lsf'"),
        ("--request slurm --budget 24GiB", "together with --budget"),
        ("--request slurm --batch 4", "together with --batch"),
        ("--request slurm --world-size 8,16", "one world size"),
        ("--card h100", "--card is for --request"),
    ],
)
def test_bad_options_are_refused(options, says, capsys):
    assert run(["plan", "train.py", *options.split()]) == 2
    assert says in capsys.readouterr().err
