"""The overlay: a script sees everything it wrote, and the real folder does not change by a byte."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROUTES = Path(__file__).parents[1] / "routes.py"
NAMES = re.findall(r"^def (route_\w+)", ROUTES.read_text(), re.MULTILINE)


def make_tree(folder: Path) -> None:
    """Create what every route finds in its folder."""
    (folder / "data" / "sub").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "a.txt").write_text("alpha")
    (folder / "data" / "b.bin").write_bytes(bytes(range(8)))
    (folder / "data" / "sub" / "c.txt").write_text("gamma")
    (folder / "link").symlink_to("a.txt")
    (folder / "dlink").symlink_to("data")


def fingerprint(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every path below `folder` with its kind, mode, owner, times and contents."""
    paths = {}
    for root, folders, files in os.walk(folder):
        for path in [root, *(os.path.join(root, name) for name in folders + files)]:
            stat = os.lstat(path)
            if os.path.islink(path):
                contents = os.readlink(path)
            elif os.path.isfile(path):
                contents = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            else:
                contents = sorted(os.listdir(path))
            paths[path] = (
                stat.st_mode,
                stat.st_uid,
                stat.st_gid,
                stat.st_mtime_ns,
                stat.st_ctime_ns,
                stat.st_nlink,
                contents,
            )
    return paths


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """All routes in one process, each in its own folder; the folder's fingerprint before and after."""
    base, other = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("other")
    for name in NAMES:
        make_tree(base / name)
    with sqlite3.connect(base / "route_sqlite" / "real.db") as database:
        database.execute("create table t (x)")
        database.execute("insert into t values (7)")
    database.close()
    (base / "route_large_files_are_refused" / "large.bin").write_bytes(bytes(200_000))
    before = fingerprint(base)
    process = subprocess.run(
        [sys.executable, str(ROUTES), str(other / "scratch"), str(base), str(other / "out.json")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    return {
        "results": json.loads((other / "out.json").read_text()),
        "before": before,
        "after": fingerprint(base),
        "base": base,
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_script_sees_its_own_changes(outcome, name):
    assert outcome["results"][name] == ""


def test_the_real_folders_are_byte_identical_afterwards(outcome):
    before, after = outcome["before"], outcome["after"]
    assert [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)] == []


def test_nothing_outside_the_folder_was_made(outcome):
    for path in ("/pinchpoint_route", "/usr/pinchpoint", "/dev/shm/pinchpoint_route", "~/.pinchpoint_route"):
        assert not os.path.lexists(os.path.expanduser(path))
    assert os.path.exists(os.devnull)


def test_the_overlay_says_what_was_written(outcome):
    base, results = outcome["base"], outcome["results"]
    assert str(base / "route_open_w" / "a.txt") in results["written"]
    assert "/pinchpoint_route" in results["written"]
