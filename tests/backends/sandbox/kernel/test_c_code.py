"""What C code of a script cannot do: `ctypes` stands for it, with functions that Python does not guard."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

# `call("chmod", ...)` calls a function by its address, as a library does: without the check of `ctypes`.
RAW = """
    import ctypes, errno, os, signal, sys
    libc = ctypes.CDLL(None, use_errno=True)
    find = libc.dlsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]

    def call(name, *args):
        ctypes.set_errno(0)
        function = ctypes.CFUNCTYPE(ctypes.c_int, use_errno=True)(find(None, name.encode()))
        result = function(*args)
        return result, errno.errorcode.get(ctypes.get_errno())
"""


@pytest.fixture
def run_in_c(run_sandboxed):
    def run(source, *arguments):
        return run_sandboxed(RAW + source, *arguments, steps=1, locked=True)

    return run


def test_ctypes_does_not_find_functions_that_bypass_the_sandbox(run_sandboxed):
    source = """
        import ctypes, os
        for library in (ctypes.CDLL(None), ctypes.CDLL("libc.so.6")):
            for name in ("system", "unlink", "kill", "rename", "fork", "execve", "chmod", "shm_unlink"):
                try: getattr(library, name)
                except PermissionError as error: assert f"calling {name} of the C library" in str(error)
                else: print("found:", name)
        assert ctypes.CDLL(None).getpid() == os.getpid()
        ctypes.CDLL(None).system
    """
    end = run_sandboxed(source)
    assert end.output == []
    assert end.exit_code == 2
    assert "calls system of the C library at" in end.fault["what"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs seccomp")
def test_c_code_cannot_change_modes_and_times(run_in_c, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "data.bin").write_bytes(b"data")
    (work / "data.bin").chmod(0o640)
    os.utime(work / "data.bin", (1_000, 2_000))
    before = (work / "data.bin").stat()
    end = run_in_c("""
    print(call("chmod", b"data.bin", 0o777))
    print(call("fchmod", os.open("data.bin", os.O_RDONLY), 0o777))
    print(call("chown", b"data.bin", 1, 1))
    print(call("utimes", b"data.bin", None))
    print(call("setxattr", b"data.bin", b"user.x", b"1", 1, 0))
    step()
    """)
    if not end.filtered:
        pytest.skip("filters are not allowed here")
    assert (end.kind, end.fault) == ("stopped", None)
    assert set(end.output) == {"(-1, 'EPERM')"}
    after = (work / "data.bin").stat()
    assert (after.st_mode, after.st_uid, after.st_ctime_ns) == (
        before.st_mode,
        before.st_uid,
        before.st_ctime_ns,
    )


def test_a_script_changes_modes_and_times_of_its_own_version(run_in_c, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "data.bin").write_bytes(b"data")
    (work / "data.bin").chmod(0o640)
    end = run_in_c("""
    import shutil, tempfile
    os.chmod("data.bin", 0o600)
    os.utime("data.bin", (5, 7))
    shutil.copy2("data.bin", "copy.bin")
    with tempfile.NamedTemporaryFile() as file:
        os.fchmod(file.fileno(), 0o644)
        print(oct(os.stat(file.name).st_mode & 0o777))
    for name in ("data.bin", "copy.bin"):
        print(oct(os.stat(name).st_mode & 0o777), os.stat(name).st_mtime)
    try: os.setxattr("copy.bin", "user.x", b"1")
    except OSError as error: assert error.errno == errno.ENOTSUP
    try: os.chmod("none.bin", 0o600)
    except FileNotFoundError as error: print(error.filename)
    step()
    """)
    assert (end.kind, end.fault) == ("stopped", None)
    assert end.output == ["0o644", "0o600 7.0", "0o600 7.0", "none.bin"]
    assert stat.S_IMODE((work / "data.bin").stat().st_mode) == 0o640
    assert sorted(os.listdir(work)) == ["data.bin", "train.py"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs seccomp")
def test_c_code_cannot_signal_other_processes(run_in_c):
    other = subprocess.Popen(["sleep", "60"])
    try:
        end = run_in_c(
            """
    other = int(sys.argv[1])
    print(call("kill", other, signal.SIGTERM))
    print(call("killpg", os.getpgid(other), signal.SIGTERM))
    fd = os.pidfd_open(other)
    print(call("syscall", 424, fd, signal.SIGTERM, None, 0))
    signals = []
    signal.signal(signal.SIGUSR1, lambda *args: signals.append(args))
    assert call("kill", os.getpid(), signal.SIGUSR1)[0] == 0
    signal.raise_signal(signal.SIGUSR1)
    assert len(signals) == 2
    import subprocess
    for end in (lambda child: child.kill(), lambda child: os.killpg(child.pid, signal.SIGKILL)):
        child = subprocess.Popen(["tail", "-f", "/dev/null"], start_new_session=True)
        end(child)
        assert child.wait() == -signal.SIGKILL
    step()
    """,
            str(other.pid),
        )
    finally:
        is_alive = other.poll() is None
        other.kill()
        other.wait()
    if not end.filtered:
        pytest.skip("filters are not allowed here")
    assert (end.kind, end.fault) == ("stopped", None)
    assert end.output == ["(-1, 'EPERM')"] * 3
    assert is_alive


def test_python_cannot_signal_other_processes_through_a_pidfd(run_sandboxed):
    end = run_sandboxed(
        """
        import os, signal, subprocess
        for pid in (os.getppid(), 1):
            try: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGUSR2)
            except PermissionError as error: assert "from sending SIGUSR2" in str(error)
            else: print("sent to", pid)
        child = subprocess.Popen(["tail", "-f", "/dev/null"])
        signal.pidfd_send_signal(os.pidfd_open(child.pid), signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        step()
        """,
        steps=1,
    )
    assert (end.kind, end.fault, end.output) == ("stopped", None, [])


@pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock")
def test_c_code_starts_only_the_programs_that_print(run_in_c, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    for place in ("git", "own"):
        (work / place).write_text("#!/bin/sh\necho ran $0\n")
        (work / place).chmod(0o755)
    end = run_in_c("""
    for command in (b"./git", b"./own", b"touch harm.txt", b"curl --version"):
        print(command.decode(), call("system", command + b" 2>/dev/null")[0] != 0)
    print("true", call("system", b"uname -a | head -1 > /dev/null")[0])
    print("io_uring", call("syscall", 425, 1, None))
    step()
    """)
    if not end.locked:
        pytest.skip("this kernel has no Landlock (version 3 or later)")
    assert (end.kind, end.fault) == ("stopped", None)
    lines = [f"{command} True" for command in ("./git", "./own", "touch harm.txt", "curl --version")]
    assert end.output == [*lines, "true 0", "io_uring (-1, 'ENOSYS')"]
    assert sorted(os.listdir(work)) == ["git", "own", "train.py"]
