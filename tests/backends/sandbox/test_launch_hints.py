"""Scripts that start a parallel job themselves: the error says how to predict it."""

from __future__ import annotations

import pytest

from pinchpoint.backends.sandbox.processes import RefusedProcess
from pinchpoint.backends.sandbox.run_script import ScriptEnd
from pinchpoint.backends.sandbox.script_errors import script_error


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        ("torchrun --nproc-per-node 8 train.py", "torchrun --nproc-per-node 8 train.py"),
        (
            "/usr/bin/python -m torch.distributed.run --nproc-per-node 8 a.py",
            "torchrun --nproc-per-node 8 a.py",
        ),
        ("accelerate launch train.py", "accelerate launch train.py"),
    ],
)
def test_a_script_that_starts_a_launcher(command: str, launch: str) -> None:
    hint = f"Predict the command that it starts: pinchpoint predict -- {launch}"
    raised = script_error(ScriptEnd("raised", 1, RefusedProcess(command)), script="start.py", steps=0)
    assert raised is not None and raised.hint == hint
    ended = script_error(ScriptEnd("exited", 127), script="start.py", steps=0, not_started=[command])
    assert ended is not None and ended.hint == hint


def test_other_programs_have_another_hint() -> None:
    error = script_error(ScriptEnd("raised", 1, RefusedProcess("make data")), script="start.py", steps=0)
    assert error is not None and error.hint.startswith("Run that command beforehand")


def test_a_process_of_python_has_a_hint_to_spawn_it() -> None:
    process = RefusedProcess("multiprocessing: main")
    error = script_error(ScriptEnd("raised", 1, process), script="start.py", steps=0)
    assert error is not None and "torch.multiprocessing.spawn" in error.hint


def test_lightning_with_more_gpus_than_one_needs_a_world_size() -> None:
    text = "You requested gpu: [0, 1, 2, 3]\n But your machine only has: [0]"
    error = script_error(ScriptEnd("raised", 1, RuntimeError(text)), script="train.py", steps=0)
    assert error is not None and error.what == "'train.py' asks for 4 GPUs."
    assert error.hint.startswith("Add --world-size 4, or 4 times the number of machines")


def test_arguments_that_a_script_refuses_are_named_with_its_own_words() -> None:
    complaint = "train.py: error: unrecognized arguments: --batchsize 4"
    end = ScriptEnd("exited", code=2, complaints=("usage: train.py [-h]", complaint))
    error = script_error(end, script="folder/train.py", steps=0)
    assert error is not None and error.what.endswith(complaint)
    assert (
        error.hint == "Give arguments that the script knows after --, such as predict train.py -- --epochs 1."
    )
