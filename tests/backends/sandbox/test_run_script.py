"""A script runs as with plain Python, stops after its steps, and an early end has a message and a hint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from pinchpoint.backends.sandbox.run_script import Stopper, StopScript, last_lines

FACTS = """
    import dataclasses, inspect, json, os, pickle, sys, __main__
    from helper import VALUE

    @dataclasses.dataclass
    class Point:
        x: int = 1

    def function():
        return "source"

    facts = {
        "argv": sys.argv[1:], "program": os.path.basename(sys.argv[0]), "name": __name__, "file": __file__,
        "path": sys.path[0], "cwd": os.getcwd(), "main": __main__.Point is Point, "spec": __spec__ is None,
        "package": __package__, "doc": __doc__, "pickled": pickle.loads(pickle.dumps(Point(3))).x,
        "source": inspect.getsource(function), "module": Point.__module__, "stdin": sys.stdin.read(),
        "helper": VALUE, "here": os.path.exists("helper.py"),
    }
    print(json.dumps(facts))
"""


def test_a_script_sees_what_plain_python_shows_it(run_sandboxed, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "helper.py").write_text("VALUE = 5")
    end = run_sandboxed(FACTS, "--lr", "0.1")
    plain = subprocess.run(
        [sys.executable, str(end.work / "train.py"), "--lr", "0.1"],
        cwd=end.work,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    assert json.loads(end.output[-1]) == json.loads(plain.stdout)
    assert not (end.work / "__pycache__").exists() or "train" not in str(
        list((end.work / "__pycache__").iterdir())
    )


LOOPS = {
    "plain": "while True: step()",
    "except Exception": """
        while True:
            try: step()
            except Exception: pass
    """,
    "except BaseException": """
        for turn in range(5):
            try: step()
            except BaseException: pass
    """,
    "exit from a bare except": """
        try:
            while True: step()
        except:
            raise SystemExit(1)
    """,
    "another error instead": """
        try:
            while True: step()
        except BaseException as error:
            raise RuntimeError("training broke") from error
    """,
    "in a thread": """
        import threading
        def work():
            while True: step()
        thread = threading.Thread(target=work)
        thread.start(); thread.join()
    """,
    "in a with block": """
        import contextlib
        with contextlib.suppress(BaseException):
            while True: step()
    """,
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_script_is_stopped_after_its_steps(run_sandboxed, loop):
    end = run_sandboxed(loop, steps=3)
    assert (end.kind, end.code, end.fault) == ("stopped", 0, None)
    assert end.steps == (5 if "range(5)" in loop else 3)


def test_a_script_that_ends_by_itself_after_fewer_steps_is_fine(run_sandboxed):
    end = run_sandboxed("step()", steps=2)
    assert (end.kind, end.steps, end.fault) == ("finished", 1, None)
    end = run_sandboxed("step(); raise SystemExit(1)", steps=2)
    assert (end.kind, end.code, end.fault) == ("exited", 1, None)


def test_the_stopper_raises_again_at_every_later_step():
    stopper = Stopper(2)
    stopper.step()
    for steps in (2, 3, 4):
        with pytest.raises(StopScript):
            stopper.step()
        assert (stopper.steps, stopper.is_done) == (steps, True)
    with pytest.raises(StopScript):
        stopper.raise_if_done()


ARGPARSE = (
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()"
)
READ_TEXT = "from pathlib import Path\ndef load():\n    return Path('a/b.csv').read_text()\nload()"
WRAPPED = """from pinchpoint.core.errors import CannotFake
try:
    raise CannotFake('op x at line 3', hint='do y')
except Exception as error:
    raise RuntimeError('wrapped') from error
"""
NO_STEP = "'train.py' ended without a training step"
ENDS = [
    # source; error, exit code; what it says; hint
    ("print('nothing to do')", "TargetFailed", 2, [NO_STEP, "nothing to do"], "after --"),
    (
        "import sys\nsys.exit(4)",
        "TargetFailed",
        2,
        ["exited with code 4 at ", "train.py:2 before its first step"],
        "after --",
    ),
    (
        "import sys\nsys.exit('no GPU here')",
        "TargetFailed",
        2,
        ["exited with code 1", "last output is: no GPU here"],
        "after --",
    ),
    ("import os\nos._exit(7)", "TargetFailed", 2, ["exited with code 7"], "after --"),
    (
        ARGPARSE,
        "TargetFailed",
        2,
        ["arguments: train.py: error: the following arguments are required: --data"],
        "after --",
    ),
    (
        "x = 1\nopen('data/set.npy')",
        "TargetFailed",
        2,
        ["'train.py' opens data/set.npy at ", "train.py:2, but this file does not exist."],
        "data/set.npy, pass the right path to the script after --",
    ),
    (
        READ_TEXT,
        "TargetFailed",
        2,
        ["'train.py' opens a/b.csv at ", "train.py:3, but this file does not exist."],
        "right path",
    ),
    (
        "raise FileNotFoundError('data not prepared')",
        "TargetFailed",
        2,
        ["Running train.py raised FileNotFoundError at ", "train.py:1: data not prepared"],
        "Fix the line",
    ),
    (
        "\nimport not_here.x",
        "Missing",
        3,
        ["imports not_here at ", "train.py:2"],
        "pip install not_here",
    ),
    ("import sklearn", "Missing", 3, ["imports sklearn"], "pip install scikit-learn"),
    (
        "from pytest import not_there",
        "Missing",
        3,
        ["another version of pytest", "not_there"],
        "Install the version of pytest",
    ),
    (
        "raise ImportError('needs flash attention')",
        "Missing",
        3,
        ["needs flash attention"],
        "Install what the message names",
    ),
    ("from . import x", "TargetFailed", 2, ["part of a package"], "predict -m work.train"),
    ("def f(:", "TargetFailed", 2, ["SyntaxError", "train.py, line 1"], "Fix the target"),
    (
        "a = [1]\nstep()\na[3]",
        "TargetFailed",
        2,
        ["Running train.py raised IndexError at ", "train.py:3: list"],
        "If it works on a GPU, it is pinchpoint that does not support it yet",
    ),
    (
        "import subprocess\nsubprocess.run(['ffmpeg', '-i', 'x'])",
        "TargetFailed",
        2,
        ["train.py:2, which pinchpoint does not support yet", "ffmpeg -i x"],
        "beforehand",
    ),
    (
        "import os\nos.system('wget x.zip')\nopen('x.zip')",
        "TargetFailed",
        2,
        ["(not started: wget x.zip)"],
        "right path",
    ),
    (
        "import posix\nposix.mkdir('x')",
        "TargetFailed",
        2,
        ["'train.py' writes x at ", "does not support yet", "cannot be redirected"],
        "Switch that",
    ),
    (WRAPPED, "CannotFake", 2, ["op x at line 3"], "do y"),
]


@pytest.mark.parametrize(
    ("source", "error", "code", "says", "hint"), ENDS, ids=[source[:40] for source, *_ in ENDS]
)
def test_an_early_end_is_told_in_one_line_and_a_hint(run_sandboxed, source, error, code, says, hint):
    end = run_sandboxed(source)
    assert end.fault is not None
    assert end.fault["error"] == error
    for part in says:
        assert part in end.fault["what"]
    assert "\n" not in end.fault["what"]
    assert hint in end.fault["hint"]
    assert end.exit_code == code


def test_the_line_of_an_error_is_the_innermost_of_the_users_own(run_sandboxed, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "helper.py").write_text("import json\ndef load():\n    return json.loads('{')\n")
    end = run_sandboxed("import helper\nhelper.load()")
    assert f"JSONDecodeError at {end.work / 'helper.py'}:3" in end.fault["what"]


def test_a_module_beside_the_package_is_found_by_pythonpath(run_sandboxed, tmp_path):
    (tmp_path / "mylib").mkdir()
    (tmp_path / "mylib" / "__init__.py").write_text("")
    end = run_sandboxed("import mylib.models")
    assert end.fault["error"] == "Missing"
    assert f"PYTHONPATH={tmp_path}" in end.fault["hint"]


def test_output_is_kept_from_python_and_from_c_and_never_reaches_ours(run_sandboxed):
    source = """
        import ctypes, os, sys
        print("from print"); os.write(1, b"from write\\n")
        ctypes.CDLL(None).puts(b"from c"); ctypes.CDLL(None).fflush(None)
        print("bar 1\\rbar 2", file=sys.stderr)
        for n in range(100): print("line", n, file=sys.stderr)
        sys.stdout.close(); sys.stderr = None
        step()
    """
    end = run_sandboxed(source, steps=1)
    assert end.kind == "stopped"
    assert set(end.output) == {"from print", "from write", "from c"}
    assert end.complaints == [f"line {n}" for n in range(80, 100)]


def test_progress_bars_count_as_lines(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"start\n 10%|#\r 20%|##\r\n\xff\n")
    assert last_lines(log) == ("start", " 10%|#", " 20%|##", "\ufffd")


def test_handlers_for_the_end_of_the_process_do_not_run_outside_the_sandbox(run_sandboxed):
    source = """
        import atexit, weakref, tempfile
        from pathlib import Path
        @atexit.register
        def harm(): Path("harm.txt").write_text("x")
        kept = tempfile.TemporaryDirectory()
        while True: step()
    """
    end = run_sandboxed(source)
    assert end.kind == "stopped"
    assert sorted(os.listdir(end.work)) == ["train.py"]


def test_writes_in_a_finally_block_after_the_stop_are_redirected_too(run_sandboxed):
    source = """
        try:
            while True: step()
        finally:
            open("last.ckpt", "w").write("weights")
    """
    end = run_sandboxed(source)
    assert (end.kind, end.written) == ("stopped", [str(end.work / "last.ckpt")])
    assert (end.scratch / "files" / str(end.work)[1:] / "last.ckpt").read_text() == "weights"
    assert os.listdir(end.work) == ["train.py"]


def test_what_numpy_and_matplotlib_write_is_redirected(run_sandboxed, tmp_path):
    np = pytest.importorskip("numpy")
    pytest.importorskip("matplotlib")
    work = tmp_path / "work"
    work.mkdir()
    np.save(work / "data.npy", np.arange(6.0))
    source = """
        import numpy as np, matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        mapped = np.load("data.npy", mmap_mode="r+")
        mapped[0] = 9; mapped.flush()
        assert np.load("data.npy")[0] == 9
        np.save("data.npy", np.zeros(2)); assert np.load("data.npy").shape == (2,)
        np.savez_compressed("z.npz", a=np.ones(3)); assert np.load("z.npz")["a"].sum() == 3
        np.savetxt("t.txt", [1.0]); assert np.loadtxt("t.txt") == 1
        np.arange(3).tofile("raw.bin"); assert np.fromfile("raw.bin", dtype=int).tolist() == [0, 1, 2]
        big = np.memmap("map.bin", dtype="f4", mode="w+", shape=(4,)); big[:] = 1; big.flush()
        assert np.memmap("map.bin", dtype="f4", mode="r").sum() == 4
        plt.plot([1, 2]); plt.savefig("figure.png"); plt.savefig("figure.pdf")
        assert plt.imread("figure.png").ndim == 3
        step()
    """
    before = (work / "data.npy").read_bytes()
    end = run_sandboxed(source, steps=1, locked=True)
    assert (end.kind, end.fault) == ("stopped", None)
    assert sorted(os.listdir(work)) == ["data.npy", "train.py"]
    assert (work / "data.npy").read_bytes() == before
    names = {"data.npy", "z.npz", "t.txt", "raw.bin", "map.bin", "figure.png", "figure.pdf"}
    assert {str(work / name) for name in names} <= set(end.written)


def test_c_code_cannot_write_where_the_kernel_can_lock(run_sandboxed, tmp_path):
    source = """
        import ctypes, os, subprocess
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fopen.restype = ctypes.c_void_p
        opened = libc.fopen(b"harm.bin", b"w")
        print(opened, os.strerror(ctypes.get_errno()))
        open("fine.txt", "w").write("fine"); print(open("fine.txt").read())
        step()
    """
    end = run_sandboxed(source, steps=1, locked=True)
    if not end.locked:
        pytest.skip("this kernel has no Landlock (version 3 or later)")
    assert end.kind == "stopped", end.fault
    assert "None Permission denied" in end.output
    assert end.output[-1] == "fine"
    assert os.listdir(end.work) == ["train.py"]


def test_everything_is_as_before_when_the_sandbox_is_left(tmp_path):
    source = """
        import builtins, glob, io, os, subprocess, sys, tempfile
        from multiprocessing.process import BaseProcess
        from pathlib import Path
        from os import listdir
        import sqlite3, dbm, tarfile
        from pinchpoint.backends.sandbox.sandbox import Sandbox

        def state():
            owners = (
                os, io, builtins, sqlite3, dbm, subprocess.Popen, BaseProcess, tempfile, sys, glob, tarfile
            )
            plain = [{name: id(v) for name, v in vars(owner).items() if callable(v)} for owner in owners]
            capabilities = (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks)
            sets = [sorted(map(str, functions)) for functions in capabilities]
            methods = vars(tempfile._TemporaryFileCloser).values()
            defaults = [m.__defaults__ for m in methods if hasattr(m, "__defaults__")]
            modules = (list(sys.meta_path), sys.dont_write_bytecode, tempfile.tempdir, id(listdir))
            return plain, sets, dict(os.environ), modules, defaults

        before = state()
        with Sandbox(Path(sys.argv[1]) / "scratch"):
            assert state() != before
            import bz2, wandb
            kept = bz2._builtin_open
        assert state() == before
        assert "wandb" not in sys.modules
        assert bz2._builtin_open is open and kept is open  # names in modules are restored
        open(sys.argv[1] + "/real.txt", "w").close()
        subprocess.run(["mkdir", sys.argv[1] + "/real"], check=True)
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(tmp_path)], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "real.txt").is_file()
    assert (tmp_path / "real").is_dir()
