"""Child processes: programs that only read may run; others behave as if they were not installed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from pinchpoint.backends.sandbox.processes import RefusedProcess
from pinchpoint.backends.sandbox.programs.safe_commands import is_harmless, is_harmless_in_shell

HARMLESS = [
    "git rev-parse HEAD",
    "git -C /x describe --always --tags",
    "git status --porcelain",
    "git --no-pager log -1 --format=%H",
    "git diff HEAD",
    "git branch --show-current",
    "git config --get user.name",
    "git remote -v",
    "git --version",
    "git symbolic-ref --short HEAD",
    "git --git-dir=/x/.git rev-parse HEAD",
    "nvidia-smi",
    "nvidia-smi -L",
    "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader -i 0,1",
    "nvidia-smi topo -m",
    "uname -a",
    "/usr/bin/lscpu -p=core",
    "hostname",
    "hostname -I",
    "date +%s",
    "date -u",
    "ldconfig -p",
    "sysctl -n hw.memsize",
    "which python",
    "gcc --version",
    "nvcc -V",
    "ls -l",
    "cat /proc/cpuinfo",
]
HARMFUL = [
    "git commit -m x",
    "git add .",
    "git checkout .",
    "git stash",
    "git push",
    "git clean -fd",
    "git branch new",
    "git config user.name x",
    "git remote add o x",
    "git diff --output=x",
    "git describe --dirty",
    "git -c alias.x=!rm x",
    "git symbolic-ref HEAD refs/heads/x",
    "git",
    "git fetch",
    "nvidia-smi -pm 1",
    "nvidia-smi -r",
    "nvidia-smi --gpu-reset",
    "nvidia-smi -pl 100",
    "nvidia-smi -q -f out.txt",
    "nvidia-smi --filename=x",
    "hostname evil",
    "hostname -F x",
    "date -s now",
    "date 010100",
    "ldconfig",
    "sysctl -w a=1",
    "sysctl vm.x=1",
    "rm -rf x",
    "mv a b",
    "cp a b",
    "touch x",
    "python train.py",
    "python -c x",
    "gcc -o x x.c",
    "bash -c ls",
    "sh",
    "env rm x",
    "sudo ls",
    "wget x",
    "curl x",
    "make",
    "tee x",
    "xargs rm",
    "find . -delete",
    "sort -o x",
    "pip install x",
    "",
]
IN_SHELL = {
    "nvidia-smi | grep MiB | head -1": True,
    "git rev-parse HEAD 2>/dev/null": True,
    "git status --short 2>&1 | wc -l": True,
    "uname -a > out.txt": False,
    "ls; rm x": False,
    "ls && rm x": False,
    "ls | tee x": False,
    "echo $(rm x)": False,
    "echo `rm x`": False,
    "ls || rm x": False,
    "echo 'open": False,
    "cat x > /dev/null": True,
    "ls\nrm x": False,
    "": False,
}


@pytest.mark.parametrize("command", HARMLESS)
def test_a_command_that_only_looks_is_harmless(command):
    assert is_harmless(command.split())
    assert is_harmless_in_shell(command)


@pytest.mark.parametrize("command", HARMFUL)
def test_a_command_that_could_change_something_is_not(command):
    assert not is_harmless(command.split())
    assert not is_harmless_in_shell(command)


@pytest.mark.parametrize(("text", "harmless"), IN_SHELL.items())
def test_a_shell_line_is_harmless_if_every_part_is(text, harmless):
    assert is_harmless_in_shell(text) is harmless


def test_a_refusal_is_caught_by_the_fallbacks_scripts_have():
    for kind in (FileNotFoundError, PermissionError, OSError, Exception):
        with pytest.raises(kind, match="starts no other process while it predicts"):
            raise RefusedProcess("ffmpeg")


def test_every_way_to_start_a_process_is_refused(run_sandboxed):
    source = """
        import asyncio, multiprocessing, os, posix, subprocess, sys

        python = sys.executable
        harm = [python, "-c", "open('harm.txt', 'w')"]
        def child(): open("harm.txt", "w")

        async def in_asyncio():
            await asyncio.create_subprocess_exec(*harm)

        ways = {
            "run": lambda: subprocess.run(harm),
            "call": lambda: subprocess.call(harm),
            "Popen": lambda: subprocess.Popen(harm),
            "check_output": lambda: subprocess.check_output(args=harm),
            "positional": lambda: subprocess.Popen(harm, -1, None),
            "path": lambda: subprocess.run(python),
            "bytes": lambda: subprocess.run([b"touch", b"harm.txt"]),
            "executable": lambda: subprocess.run(["ls", "harm.txt"], executable="/bin/touch"),
            "fork": os.fork, "forkpty": os.forkpty, "execv": lambda: os.execv(python, harm),
            "execvp": lambda: os.execvp("touch", ["touch", "h"]),
            "spawnv": lambda: os.spawnv(os.P_WAIT, python, harm),
            "posix_spawn": lambda: os.posix_spawn(python, harm, os.environ),
            "raw": lambda: posix.fork(),
            "Process": lambda: multiprocessing.Process(target=child).start(),
            "spawn": lambda: multiprocessing.get_context("spawn").Process(target=child).start(),
            "asyncio": lambda: asyncio.run(in_asyncio()),
        }
        for name, way in ways.items():
            try:
                way()
            except FileNotFoundError as error:
                assert "pinchpoint starts no other process" in str(error), error
            else:
                print("started:", name)
        assert os.system("touch harm.txt") == 127 << 8
        assert subprocess.run("touch harm.txt", shell=True).returncode == 127
        assert subprocess.run("harm.txt", shell=True, executable="/bin/touch").returncode == 127
        assert subprocess.getstatusoutput("touch harm.txt")[0] == 127
        assert os.popen("touch harm.txt").close() == 127 << 8
        try:
            subprocess.check_output("touch harm.txt; true", shell=True, stderr=subprocess.STDOUT)
        except subprocess.CalledProcessError as error:
            assert error.returncode == 127 and b"not started" in error.output
        step()
    """
    end = run_sandboxed(source, steps=1)
    assert (end.kind, end.fault) == ("stopped", None)
    assert end.output == []
    assert os.listdir(end.work) == ["train.py"]
    assert {
        "touch harm.txt",
        "touch harm.txt; true",
        "multiprocessing: child",
        "os.fork",
        "os.forkpty",
    } <= set(end.refused)
    assert len(end.refused) == len(set(end.refused))


def test_programs_that_look_do_run_and_signals_reach_only_our_own(run_sandboxed):
    source = """
        import os, platform, signal, subprocess
        print(subprocess.check_output(["uname", "-s"], text=True).strip())
        print(subprocess.check_output("uname -s | head -1", shell=True, text=True).strip())
        assert os.system("true") == 0
        assert platform.processor() is not None
        parent = os.getppid()
        targets = ((parent, signal.SIGTERM), (0, signal.SIGTERM), (-1, signal.SIGKILL), (1, signal.SIGHUP))
        for pid, number in targets:
            try: os.kill(pid, number)
            except PermissionError as error: assert "from sending" in str(error)
            else: raise AssertionError(pid)
        try: os.killpg(os.getpgid(0), signal.SIGTERM)
        except PermissionError: pass
        else: raise AssertionError("group")
        os.kill(os.getppid(), 0)
        signals = []
        signal.signal(signal.SIGUSR1, lambda *args: signals.append(args))
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals
        child = subprocess.Popen(["tail", "-f", "/dev/null"])
        child.kill()
        assert child.wait() == -signal.SIGKILL
        signal.alarm(0)
        step()
    """
    end = run_sandboxed(source, steps=1)
    assert (end.kind, end.fault) == ("stopped", None)
    assert end.output == [os.uname().sysname] * 2


def test_a_script_that_starts_mpi_does_not_end(run_sandboxed):
    source = """
        import ctypes, ctypes.util, os
        print(os.environ["OMPI_MCA_ess_singleton_isolated"])
        if library := ctypes.util.find_library("mpi"):
            mpi = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            assert mpi.MPI_Init(None, None) == 0
            mpi.MPI_Finalize()
        step()
    """
    end = run_sandboxed(source, steps=1, locked=True)
    assert (end.kind, end.fault) == ("stopped", None)
    assert end.output[0] == "1"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_asking_git_does_not_touch_the_repository(run_sandboxed, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("")
    for command in ("init -q", "add train.py", "-c user.name=a -c user.email=b commit -qm x"):
        subprocess.run(["git", *command.split()], cwd=work, check=True)
    (work / "note.txt").write_text("untracked")
    os.utime(work / "train.py", (1, 1))  # the index is now out of date, and git would rewrite it

    def state():
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted((work / ".git").rglob("*"))
            if path.is_file()
        }

    source = """
        import subprocess
        for command in ("status --porcelain", "diff --stat", "rev-parse HEAD", "describe --always", "show"):
            arguments = ["git", *command.split()]
            print(subprocess.check_output(arguments, text=True, env=dict(PATH="/usr/bin:/bin")).strip())
            subprocess.check_output("git " + command, shell=True)
        step()
    """
    (work / "train.py").unlink()
    before = state()
    end = run_sandboxed(source, steps=1)
    assert (end.kind, end.fault) == ("stopped", None)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=work, capture_output=True, text=True
    ).stdout.strip()
    assert head in end.output
    assert state() == before
