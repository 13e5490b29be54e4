"""The commands of launchers: what they start, and which of them are refused."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core import errors
from pinchpoint.core.errors import BadInput, Missing, PinchpointError
from pinchpoint.forecasting import launch_command
from pinchpoint.forecasting.launch_command import Launch, is_launch, read_launch
from pinchpoint.forecasting.predict import predict

pytest.importorskip("torch", reason="torchrun is part of torch")
SCRIPTS = Path(__file__).parents[1] / "scripts"
FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
"""


def _answer(pipe: Any, command: list[str]) -> None:
    from pinchpoint.backends.torch.ranks import launchers

    try:
        pipe.send(launchers.read(command))
    except PinchpointError as error:
        pipe.send(errors.to_dict(error))


def read_in_a_fork(command: list[str], timeout_s: float) -> dict[str, Any]:
    """Read a command as the process of `read_launch` does, which needs seconds to import torch."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(theirs, command))
    process.start()
    answer = ours.recv()
    process.join()
    if "error" in answer:
        raise errors.from_dict(answer)
    return answer


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Launch]:
    monkeypatch.setattr(launch_command, "_ask", read_in_a_fork)

    def read_command(text: str, **options: Any) -> Launch:
        first, *others = text.split()
        return read_launch(first, others, **options)

    return read_command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    pytest.importorskip("accelerate.commands.launch", reason="accelerate is not installed")
    path = tmp_path / "config.yaml"
    path.write_text(FSDP, encoding="utf-8")
    return path


def test_torchrun_starts_a_script_on_every_machine(read: Any) -> None:
    launch = read("torchrun --nproc-per-node 4 --nnodes=2 train.py --lr 1")
    assert launch == Launch("train.py", ("--lr", "1"), 8, 4, {})
    assert read("python -m torch.distributed.run --nproc-per-node=2 -m package.train").target == (
        "-m package.train"
    )
    assert read("torchrun train.py").world_size == 1


def test_an_elastic_job_has_its_fewest_machines_and_a_note(read: Any) -> None:
    launch = read("torchrun --nproc-per-node 4 --nnodes 2:6 train.py")
    assert launch.world_size == 8
    assert launch.notes == ("the job may have 2 to 6 machines: it is predicted with 2",)


@pytest.mark.parametrize("verb", ["check", "profile"])
def test_other_verbs_take_no_launcher(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--", "torchrun", "--nproc-per-node", "4", "train.py"]) == 2
    assert "which only predict and plan take" in capsys.readouterr().err


def test_the_number_of_gpus_is_that_of_the_world_size(read: Any) -> None:
    with pytest.raises(BadInput, match="number of GPUs is not given"):
        read("torchrun --nproc-per-node gpu train.py")
    launch = read("torchrun --nproc-per-node gpu --nnodes 2 train.py", world_size=8)
    assert (launch.world_size, launch.local_world_size) == (8, 4)
    with pytest.raises(BadInput, match="cannot be divided"):
        read("torchrun --nproc-per-node gpu --nnodes 3 train.py", world_size=8)


def test_a_config_file_of_accelerate_sets_its_variables(read: Any, config: Path) -> None:
    launch = read(f"accelerate launch --config_file {config} train.py --epochs 2")
    assert (launch.target, launch.args) == ("train.py", ("--epochs", "2"))
    assert (launch.world_size, launch.local_world_size) == (16, 8)
    assert (
        launch.environment.items()
        >= {
            "ACCELERATE_USE_FSDP": "true",
            "ACCELERATE_MIXED_PRECISION": "bf16",
            "FSDP_VERSION": "2",
            "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
        }.items()
    )
    assert "CUDA_VISIBLE_DEVICES" not in launch.environment


def test_options_of_accelerate_override_its_config_file(read: Any, config: Path) -> None:
    launch = read(
        f"accelerate launch --config_file {config} --num_processes 4 --num_machines 1"
        " --mixed_precision fp16 --gpu_ids 0,1,2,3 train.py"
    )
    assert (launch.world_size, launch.local_world_size) == (4, 4)
    assert launch.environment["ACCELERATE_MIXED_PRECISION"] == "fp16"
    one = read("accelerate launch --num_processes 1 train.py")
    assert (one.world_size, "ACCELERATE_USE_FSDP" in one.environment) == (None, False)


def test_a_world_size_that_contradicts_the_launcher_is_refused(read: Any, config: Path) -> None:
    command = f"accelerate launch --config_file {config} train.py"
    with pytest.raises(BadInput, match=r"accelerate launch starts 16 processes, but --world-size is 8\."):
        read(command, world_size=8)
    with pytest.raises(BadInput, match="starts 8 processes per machine, but --local-world-size is 4"):
        read(command, local_world_size=4)
    assert read(command, world_size=16).world_size == 16


@pytest.mark.parametrize(("kind", "word"), [("XLA", "TPUs"), ("MEGATRON_LM", "Megatron-LM")])
def test_other_kinds_of_jobs_are_refused_by_name(read: Any, config: Path, kind: str, word: str) -> None:
    head = FSDP.partition("fsdp_config")[0].replace("distributed_type: FSDP", f"distributed_type: {kind}")
    config.write_text(head.replace("num_machines: 2", "num_machines: 1"), encoding="utf-8")
    with pytest.raises(BadInput, match=f"asks for {word}, which pinchpoint does not support yet"):
        read(f"accelerate launch --config_file {config} train.py")


def test_deepspeed_must_be_installed(read: Any, config: Path) -> None:
    if find_spec("deepspeed") is not None:
        pytest.skip("deepspeed is installed")
    head = FSDP.partition("fsdp_config")[0].replace("distributed_type: FSDP", "distributed_type: DEEPSPEED")
    config.write_text(head, encoding="utf-8")
    with pytest.raises(Missing, match="asks for DeepSpeed, which is not installed"):
        read(f"accelerate launch --config_file {config} train.py")


def test_commands_that_launchers_refuse_are_refused(read: Any, config: Path) -> None:
    with pytest.raises(BadInput, match=r"`nope\.yaml` does not exist\."):
        read("accelerate launch --config_file nope.yaml train.py")
    with pytest.raises(BadInput, match="unrecognized arguments: --gpus"):
        read("torchrun --gpus 8 train.py")
    with pytest.raises(BadInput, match="starts no script"):
        read("accelerate config")
    with pytest.raises(BadInput, match="launcher of DeepSpeed"):
        read("deepspeed --num_gpus 8 train.py")
    assert not is_launch("train.py")


def test_python_in_front_of_a_script_changes_nothing(read: Any) -> None:
    assert read("python train.py --lr 1") == Launch("train.py", ("--lr", "1"), None, None)
    assert read("python -m package.train", world_size=4).target == "-m package.train"
    with pytest.raises(BadInput, match="python -c cannot be predicted"):
        read("python -c pass")


@pytest.mark.usefixtures("quick_workers")
def test_a_command_of_torchrun_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_command, "_ask", read_in_a_fork)
    command = f"torchrun --nproc-per-node 8 --nnodes 2 {SCRIPTS / 'fsdp_torchrun.py'}"
    forecast = predict(command, rank=9)
    assert (forecast.rank, forecast.world_size) == (9, 16)


def test_a_launcher_without_dashes_has_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "torchrun", "--nproc-per-node", "8", "train.py"]) == 2
    assert (
        "Put the launcher's command after --: pinchpoint predict -- torchrun ..." in capsys.readouterr().err
    )
