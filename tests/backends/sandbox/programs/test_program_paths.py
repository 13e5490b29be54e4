"""Programs are trusted by where they are, not by their name."""

from __future__ import annotations

import os
import sys

import pytest

from pinchpoint.backends.sandbox.programs.program_paths import files_to_start, find_program

FAKE = "#!/bin/sh\necho shadow > harm.txt\necho shadow\n"


def test_only_programs_of_system_folders_are_found(tmp_path, monkeypatch):
    own = tmp_path / "uname"
    own.write_text(FAKE)
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program(str(own), "/") is None
    assert find_program("./uname", str(tmp_path)) is None
    path = find_program("uname", str(tmp_path))
    assert path is not None
    assert os.path.dirname(path) in ("/usr/bin", "/bin", "/usr/local/bin")
    assert find_program(path, "/") == path
    assert find_program("no-such-program", "/") is None
    linked = tmp_path / "bin"
    linked.symlink_to(os.path.dirname(path))
    assert find_program(f"{linked}/uname", "/") == f"{linked}/uname"


@pytest.mark.skipif(sys.platform != "linux", reason="loaders are those of Linux")
def test_what_starts_a_program_is_its_file_and_its_loader():
    files = files_to_start(["uname"])
    assert any(os.path.basename(file).startswith(("uname", "coreutils", "busybox")) for file in files)
    assert any("ld-" in os.path.basename(file) for file in files)
    assert all(os.path.realpath(file) == file for file in files)


def test_programs_that_shadow_those_of_the_system_do_not_run(run_sandboxed, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    for name in ("uname", "git"):
        (work / name).write_text(FAKE)
        (work / name).chmod(0o755)
    (work / "rc.sh").write_text("uname() { echo shadow; }\n")
    source = """
        import os, subprocess, sys
        os.environ["PATH"] = os.getcwd() + os.pathsep + os.environ["PATH"]
        os.environ.update({"BASH_FUNC_uname%%": "() {  echo shadow; }", "BASH_ENV": os.path.abspath("rc.sh")})
        for shell in (None, "/bin/bash" if os.path.exists("/bin/bash") else None):
            print(subprocess.check_output("uname -s", shell=True, text=True, executable=shell).strip())
        print(subprocess.check_output(["uname", "-s"], text=True).strip())
        print(subprocess.check_output(["uname", "-s"], text=True, env=dict(PATH=os.getcwd())).strip())
        print(os.popen("uname -s | head -1").read().strip())
        assert os.system("./uname") == 127 << 8
        for command in (["./git", "status"], [os.path.abspath("git"), "status"], ["uname"]):
            program = "./uname" if command == ["uname"] else None
            try: subprocess.run(command, executable=program)
            except FileNotFoundError: pass
            else: print("ran:", command)
        assert subprocess.run("./git status", shell=True).returncode == 127
        assert subprocess.run(["true"]).returncode == 0
        step()
    """
    end = run_sandboxed(source, steps=1)
    assert (end.kind, end.fault) == ("stopped", None)
    assert end.output == [os.uname().sysname] * 5
    assert sorted(os.listdir(work)) == ["git", "rc.sh", "train.py", "uname"]
    assert {"./git status", "./uname", "uname"} <= set(end.refused)


def test_the_ways_of_multiprocessing_to_start_a_program_are_refused(run_sandboxed):
    source = """
        import _posixsubprocess, os, posix, sys
        from multiprocessing import util

        harm = [b"/bin/sh", b"-c", b"echo harm > harm.txt"]
        ways = {
            "spawnv_passfds": lambda: util.spawnv_passfds(b"/bin/sh", harm, ()),
            "fork_exec": lambda: _posixsubprocess.fork_exec(harm, [b"/bin/sh"], *[None] * 19),
            "posix_spawn": lambda: posix.posix_spawn(b"/bin/sh", harm, os.environ),
            "posix_spawnp": lambda: os.posix_spawnp("sh", harm, os.environ),
            "system": lambda: posix.system("echo harm > harm.txt"),
        }
        for name, way in ways.items():
            try: way()
            except FileNotFoundError as error: assert "starts no other process" in str(error), error
            else: print("started:", name)
        step()
    """
    end = run_sandboxed(source, steps=1)
    assert (end.kind, end.fault, end.output) == ("stopped", None, [])
    assert os.listdir(end.work) == ["train.py"]
