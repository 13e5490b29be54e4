"""The process outside the filter: it changes files of the scratch folder, and ends programs of the script."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys

import pytest

from pinchpoint.backends.sandbox.kernel.delegate import Delegate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it serves a filter of Linux")


@pytest.fixture
def delegate(tmp_path):
    (tmp_path / "scratch").mkdir()
    delegate = Delegate(tmp_path / "scratch")
    yield delegate
    delegate.close()


def test_files_of_the_scratch_folder_change_and_others_do_not(delegate, tmp_path):
    inside, outside, link = tmp_path / "scratch" / "a", tmp_path / "a", tmp_path / "scratch" / "link"
    inside.touch(mode=0o600)
    outside.touch(mode=0o600)
    link.symlink_to(outside)
    delegate.change_attribute("chmod", str(inside), 0o640)
    delegate.change_attribute("utime", str(inside), ns=(5, 7))
    assert (stat.S_IMODE(inside.stat().st_mode), inside.stat().st_mtime_ns) == (0o640, 7)
    for path in (outside, link, tmp_path / "scratch" / ".." / "a"):
        with pytest.raises(PermissionError):
            delegate.change_attribute("chmod", str(path), 0o666)
    with pytest.raises(PermissionError):
        delegate.change_attribute("unlink", str(inside))
    with pytest.raises(FileNotFoundError):
        delegate.change_attribute("chmod", str(tmp_path / "scratch" / "none"), 0o600)
    with pytest.raises(TypeError):
        delegate.change_attribute("chmod", str(inside), "0o600")
    delegate.change_attribute("chmod", str(inside), 0o644)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o600


def test_only_children_of_the_script_get_signals(delegate):
    child = subprocess.Popen(["sleep", "60"])
    delegate.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    for pid in (os.getppid(), 1):
        with pytest.raises(PermissionError):
            delegate.kill(pid, 0)


def test_an_interrupted_question_does_not_confuse_the_next_answers(delegate, tmp_path):
    class Interruption(Exception):
        pass

    receive = delegate._pipe.recv
    delegate._pipe.recv = lambda: (_ for _ in ()).throw(Interruption)
    with pytest.raises(Interruption):
        delegate.change_attribute("chmod", str(tmp_path / "none"), 0o600)
    delegate._pipe.recv = receive
    (tmp_path / "scratch" / "a").touch()
    delegate.change_attribute("chmod", str(tmp_path / "scratch" / "a"), 0o600)


def test_it_ends_although_another_process_holds_the_pipe(tmp_path):
    delegate = Delegate(tmp_path)
    copy = os.dup(delegate._pipe.fileno())
    delegate.close()  # returns only once the process has ended
    os.close(copy)
    with pytest.raises(ChildProcessError):
        os.waitpid(delegate._process, 0)
