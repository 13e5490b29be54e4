"""Every known way to write, move or remove a file from Python; `test_overlay.py` runs them in an overlay.

`python routes.py SCRATCH BASE OUT` runs each `route_*` function in its own folder BASE/<name>, which holds
the tree of `test_overlay.make_tree`, and writes {name: "" or the traceback} to OUT. A route asserts that the
script itself sees its changes; the test asserts that BASE does not change.
"""

# ruff: noqa: PT017, SIM115

from __future__ import annotations

import bz2
import codecs
import contextlib
import dbm
import errno
import filecmp
import fileinput
import glob
import gzip
import io
import json
import logging
import logging.handlers
import lzma
import os
import pickle
import posix
import shelve
import shutil
import socket
import sqlite3
import stat
import sys
import tarfile
import tempfile
import threading
import traceback
import zipfile
from os import mkdir as kept_mkdir
from os import unlink as kept_unlink
from pathlib import Path

from pinchpoint.backends.sandbox.files.merged_view import RefusedWrite
from pinchpoint.backends.sandbox.files.overlay import Overlay

kept_open = open


@contextlib.contextmanager
def raises(kind, number=None):
    try:
        yield
    except kind as error:
        assert number is None or error.errno == number, error
        assert "files/" not in str(error), f"names the scratch path: {error}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def read(path):
    with open(path) as file:
        return file.read()


def route_open_w():
    with open("a.txt", "w") as file:
        assert file.name == "a.txt"
        file.write("mine")
    assert read("a.txt") == "mine"
    assert os.path.getsize("a.txt") == 4


def route_open_new():
    with open("new.txt", "x", encoding="utf-8") as file:
        file.write("new")
    assert read(os.path.abspath("new.txt")) == "new"
    assert "new.txt" in os.listdir()
    with raises(FileExistsError):
        open("new.txt", "x")
    with raises(FileExistsError):
        open("a.txt", "x")


def route_open_a():
    with open("a.txt", "a") as file:
        file.write("+more")
    assert read("a.txt") == "alpha+more"


def route_open_r_plus():
    with open("data/b.bin", "r+b") as file:
        file.seek(2)
        file.write(b"XY")
    with open("data/b.bin", "rb") as file:
        assert file.read() == b"\0\1XY\4\5\6\7"


def route_open_w_plus_truncates():
    with open("a.txt", "w+") as file:
        assert file.read() == ""


def route_open_bytes_path():
    with open(b"a.txt", "wb") as file:
        file.write(b"bytes")
    assert b"a.txt" in os.listdir(b".")
    assert read("a.txt") == "bytes"


def route_errors_are_the_usual_ones():
    with raises(FileNotFoundError):
        open("none/x.txt", "w")
    with raises(FileNotFoundError):
        open("none.txt", "r+")
    with raises(FileNotFoundError):
        open("none.txt")
    with raises(NotADirectoryError):
        open("a.txt/x", "w")
    with raises(IsADirectoryError):
        open("data", "w")
    with raises(FileNotFoundError):
        os.remove("none.txt")
    with raises(FileNotFoundError):
        os.mkdir("none/deep")
    with raises(FileExistsError):
        os.mkdir("data")
    with raises(OSError, errno.ENOTEMPTY):
        os.rmdir("data")
    with raises(NotADirectoryError):
        os.rmdir("a.txt")
    with raises(IsADirectoryError):
        os.unlink("data")
    with raises(FileNotFoundError):
        os.stat("")
    with raises(TypeError):
        open(None, "w")  # pyright: ignore[reportCallIssue, reportArgumentType]


def route_os_open():
    fd = os.open("a.txt", os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"raw")
    os.close(fd)
    assert read("a.txt") == "raw"
    fd = os.open("n.txt", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.close(fd)
    assert stat.S_IMODE(os.stat("n.txt").st_mode) == 0o600
    fd = os.open("sub2", os.O_RDONLY) if os.path.exists("sub2") else os.open("data", os.O_RDONLY)
    made = os.open("with_dir_fd.txt", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.close(made)
    os.close(fd)
    assert os.path.exists("data/with_dir_fd.txt")


def route_os_tmpfile():
    fd = os.open("data", os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b"x")
    os.close(fd)


def route_fdopen():
    with os.fdopen(os.open("a.txt", os.O_RDWR), "r+") as file:
        file.write("AL")
    assert read("a.txt") == "ALpha"


def route_file_io():
    with io.FileIO("a.txt", "w") as file:
        assert isinstance(file, io.FileIO)
        file.write(b"fileio")
    with io.FileIO("a.txt") as file:
        assert file.read() == b"fileio"
    with open("a.txt", "rb") as file:
        assert isinstance(file.raw, io.FileIO)


def route_opener():
    fd = os.open("data", os.O_RDONLY)
    with open("o.txt", "w", opener=lambda path, flags: os.open(path, flags, dir_fd=fd)) as file:
        file.write("opened")
    os.close(fd)
    assert read("data/o.txt") == "opened"


def route_pathlib():
    path = Path("data") / "sub" / "c.txt"
    path.write_text("changed")
    assert path.read_text() == "changed"
    Path("p.bin").write_bytes(b"12")
    assert Path("p.bin").stat().st_size == 2
    Path("made/deep").mkdir(parents=True)
    Path("made/deep").mkdir(parents=True, exist_ok=True)
    assert Path("made/deep").is_dir()
    Path("touched").touch()
    Path("a.txt").touch()
    assert Path("touched").is_file()
    Path("a.txt").rename("moved.txt")
    assert not Path("a.txt").exists()
    assert Path("moved.txt").read_text() == "alpha"
    Path("moved.txt").replace("again.txt")
    Path("again.txt").unlink()
    Path("again.txt").unlink(missing_ok=True)
    Path("empty").rmdir()
    assert not Path("empty").exists()
    Path("soft").symlink_to("data/b.bin")
    assert Path("soft").read_bytes() == bytes(range(8))
    Path("hard").hardlink_to("data/b.bin")
    assert Path("hard").read_bytes() == bytes(range(8))
    Path("hard").chmod(0o600)
    assert sorted(p.name for p in Path().iterdir()) == [
        "data",
        "dlink",
        "hard",
        "link",
        "made",
        "p.bin",
        "soft",
        "touched",
    ]
    assert sorted(str(p) for p in Path().rglob("*.bin")) == ["data/b.bin", "p.bin"]
    assert sorted(str(p) for p in Path().glob("data/**/*.txt")) == ["data/sub/c.txt"]
    assert Path("soft").resolve() == Path.cwd() / "data/b.bin"
    assert Path("soft").readlink() == Path("data/b.bin")


def route_makedirs():
    os.makedirs("x/y/z")
    os.makedirs("data/sub", exist_ok=True)
    os.makedirs("x/y/z", exist_ok=True)
    with open("x/y/z/f", "w") as file:
        file.write("f")
    os.remove("x/y/z/f")
    os.removedirs("x/y/z")
    assert not os.path.exists("x")


def route_remove():
    os.remove("a.txt")
    os.unlink("data/b.bin")
    assert not os.path.exists("a.txt")
    assert not os.path.lexists("data/b.bin")
    assert os.listdir("data") == ["sub"]
    assert os.path.islink("link")
    assert not os.path.exists("link")  # its target is gone
    with raises(FileNotFoundError):
        open("a.txt")
    with raises(FileNotFoundError):
        os.remove("a.txt")
    with open("a.txt", "w") as file:
        file.write("back")
    assert read("link") == "back"
    os.remove("a.txt")
    assert not os.path.exists("a.txt")


def route_remove_then_recreate_folder():
    shutil.rmtree("data")
    assert not os.path.exists("data/sub/c.txt")
    os.mkdir("data")
    assert os.listdir("data") == []
    assert list(os.scandir("data")) == []
    with raises(FileNotFoundError):
        open("data/b.bin")
    with open("data/b.bin", "w") as file:
        file.write("other")
    assert os.listdir("data") == ["b.bin"]


def route_file_in_place_of_folder():
    shutil.rmtree("data")
    with open("data", "w") as file:
        file.write("now a file")
    assert os.path.isfile("data")
    with raises(NotADirectoryError):
        os.listdir("data")


def route_rename():
    os.rename("a.txt", "b.txt")
    assert not os.path.exists("a.txt")
    assert read("b.txt") == "alpha"
    os.replace("b.txt", "data/b.bin")
    assert read("data/b.bin") == "alpha"
    os.renames("data/b.bin", "fresh/place/b.bin")
    assert read("fresh/place/b.bin") == "alpha"
    with raises(IsADirectoryError):
        os.rename("fresh/place/b.bin", "empty")
    with raises(NotADirectoryError):
        os.rename("data", "fresh/place/b.bin")
    with raises(OSError, errno.ENOTEMPTY):
        os.rename("empty", "data")
    with raises(FileNotFoundError):
        os.rename("a.txt", "c.txt")


def route_rename_folder():
    os.rename("data", "moved")
    assert sorted(os.listdir("moved")) == ["b.bin", "sub"]
    assert read("moved/sub/c.txt") == "gamma"
    assert not os.path.exists("data")
    os.rename("moved", "empty")  # an empty folder may be replaced
    assert read("empty/sub/c.txt") == "gamma"
    os.mkdir("data")
    assert os.listdir("data") == []


def route_truncate():
    os.truncate("a.txt", 2)
    assert read("a.txt") == "al"
    with open("data/b.bin", "r+b") as file:
        file.truncate(3)
        os.ftruncate(file.fileno(), 1)
    assert os.path.getsize("data/b.bin") == 1


def route_metadata():
    os.chmod("a.txt", 0o600)
    assert stat.S_IMODE(os.stat("a.txt").st_mode) == 0o600
    os.utime("a.txt", (1, 2))
    assert os.stat("a.txt").st_mtime == 2
    os.utime("data/sub", ns=(3, 4))
    assert os.stat("data/sub").st_mtime_ns == 4
    os.utime("data/b.bin")
    os.chown("data/b.bin", os.getuid(), os.getgid())
    with open("data/sub/c.txt") as file:
        os.fchmod(file.fileno(), 0o640)
        os.chmod(file.fileno(), 0o644)
        os.utime(file.fileno(), (5, 6))
        os.fchown(file.fileno(), -1, -1)
    assert os.stat("data/sub/c.txt").st_mtime == 6
    with contextlib.suppress(OSError):  # not every file system has these
        os.setxattr("a.txt", "user.mine", b"1")
        assert os.getxattr("a.txt", "user.mine") == b"1"
        os.removexattr("a.txt", "user.mine")
    assert isinstance(os.listxattr("a.txt"), list)


def route_symlink():
    os.symlink("a.txt", "soft")
    assert read("soft") == "alpha"
    assert os.readlink("soft") == "a.txt"
    assert os.path.realpath("soft") == os.path.join(os.getcwd(), "a.txt")
    with open("soft", "w") as file:
        file.write("through")
    assert read("a.txt") == "through"
    os.symlink(os.path.abspath("data"), "soft_data")
    with open("soft_data/sub/c.txt", "a") as file:
        file.write("!")
    assert read("data/sub/c.txt") == "gamma!"
    with raises(FileExistsError):
        os.symlink("x", "soft")
    os.symlink("loop", "loop")
    with raises(OSError, errno.ELOOP):
        os.stat("loop")
    os.unlink("soft")
    assert read("a.txt") == "through"


def route_write_through_real_links():
    with open("link", "a") as file:
        file.write("+")
    assert read("a.txt") == "alpha+"
    assert os.path.islink("link")
    with open("dlink/new.txt", "w") as file:
        file.write("via folder link")
    assert read("data/new.txt") == "via folder link"
    assert sorted(os.listdir("dlink")) == ["b.bin", "new.txt", "sub"]
    os.remove("dlink/b.bin")
    assert not os.path.exists("data/b.bin")
    with open("dlink/../a.txt") as file:
        assert file.read() == "alpha+"


def route_link():
    os.link("a.txt", "hard")
    with open("hard", "w") as file:
        file.write("hard")
    assert read("hard") == "hard"
    assert read("a.txt") == "hard"


def route_fifo():
    os.mkfifo("pipe")
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


def route_dir_fd():
    fd = os.open("data", os.O_RDONLY)
    os.mkdir("m", dir_fd=fd)
    os.rename("b.bin", "moved.bin", src_dir_fd=fd, dst_dir_fd=fd)
    os.symlink("moved.bin", "s", dir_fd=fd)
    os.chmod("sub", 0o700, dir_fd=fd)
    assert sorted(os.listdir("data")) == ["m", "moved.bin", "s", "sub"]
    os.unlink("moved.bin", dir_fd=fd)
    os.rmdir("m", dir_fd=fd)
    assert sorted(os.listdir(fd)) == ["s", "sub"]
    assert sorted(entry.name for entry in os.scandir(fd)) == ["s", "sub"]
    assert os.stat("sub/c.txt", dir_fd=fd).st_size == 5
    os.close(fd)


def route_shutil():
    shutil.copy("a.txt", "copy.txt")
    shutil.copy2("a.txt", "data/copy2.txt")
    assert os.stat("data/copy2.txt").st_mtime == os.stat("a.txt").st_mtime
    shutil.copyfile("data/b.bin", "a.txt")
    assert filecmp.cmp("a.txt", "data/b.bin", shallow=False)
    shutil.copytree("data", "tree")
    assert read("tree/sub/c.txt") == "gamma"
    shutil.move("data/sub", "sub_moved")
    assert os.listdir("sub_moved") == ["c.txt"]
    shutil.move("copy.txt", "empty")
    assert os.listdir("empty") == ["copy.txt"]
    shutil.rmtree("data")
    assert not os.path.exists("data")
    shutil.rmtree("tree")
    assert not os.path.exists("tree")
    assert shutil.disk_usage(".").total > 0


def route_walk():
    os.mkdir("data/made")
    with open("data/made/f.txt", "w") as file:
        file.write("1")
    os.remove("data/b.bin")
    names = {
        os.path.relpath(root, "data"): (sorted(dirs), sorted(files)) for root, dirs, files in os.walk("data")
    }
    assert names == {".": (["made", "sub"], []), "made": ([], ["f.txt"]), "sub": ([], ["c.txt"])}
    assert sorted(glob.glob("data/**/*.txt", recursive=True)) == ["data/made/f.txt", "data/sub/c.txt"]
    assert glob.glob("data/*.bin") == []
    names = {os.path.relpath(root, "data"): sorted(files) for root, dirs, files, fd in os.fwalk("data")}
    assert names == {".": [], "made": ["f.txt"], "sub": ["c.txt"]}
    with os.scandir("data") as entries:
        found = {
            entry.name: (entry.is_dir(), entry.is_file(), entry.is_symlink(), entry.path) for entry in entries
        }
    assert found == {name: (True, False, False, f"data/{name}") for name in ("made", "sub")}
    assert [entry.stat().st_size for entry in os.scandir("data/made")] == [1]
    assert all(entry.inode() for entry in os.scandir("data"))


def route_chdir():
    os.makedirs("here/below")
    base = os.getcwd()
    os.chdir("here")
    assert os.getcwd() == os.path.join(base, "here")
    with open("below/f", "w") as file:
        file.write("relative")
    assert read(os.path.join(base, "here/below/f")) == "relative"
    os.chdir("../data")
    assert os.getcwdb() == os.fsencode(os.path.join(base, "data"))
    with open("../a.txt", "w") as file:
        file.write("up")
    os.chdir("..")
    assert read("a.txt") == "up"
    with contextlib.chdir("here/below"):
        assert os.listdir() == ["f"]
    assert Path.cwd() == Path(base)
    with raises(FileNotFoundError):
        os.chdir("none")


def route_access():
    assert os.access("a.txt", os.R_OK)
    os.remove("a.txt")
    assert not os.access("a.txt", os.F_OK)
    with open("f", "w"):
        pass
    assert os.access("f", os.R_OK | os.W_OK)


def route_same_file():
    with open("a.txt", "a") as file:
        assert os.path.samefile("a.txt", "link")
        assert os.path.sameopenfile(file.fileno(), file.fileno())


def route_tempfile():
    with tempfile.NamedTemporaryFile("w", dir="data", suffix=".t") as file:
        file.write("t")
        file.flush()
        assert os.path.basename(file.name) in os.listdir("data")
        assert read(file.name) == "t"
    assert sorted(os.listdir("data")) == ["b.bin", "sub"]
    with tempfile.TemporaryFile(dir=".") as file:
        file.write(b"t")
    with tempfile.TemporaryDirectory(dir="data") as folder:
        Path(folder, "x").write_text("x")
        assert os.path.basename(folder) in os.listdir("data")
    assert sorted(os.listdir("data")) == ["b.bin", "sub"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_text("x")
        assert folder.startswith(sys.argv[1])
    fd, name = tempfile.mkstemp()
    os.close(fd)
    shutil.move(name, "from_temp")
    assert os.path.exists("from_temp")
    assert not os.path.exists(name)
    with tempfile.SpooledTemporaryFile(max_size=1) as file:
        file.write(b"longer")


def route_archives():
    for module in (gzip, bz2, lzma):
        name = f"f.{module.__name__}"
        with module.open(name, "wt") as file:
            file.write("packed")
        with module.open(name, "rt") as file:
            assert file.read() == "packed"
    with zipfile.ZipFile("z.zip", "w") as archive:
        archive.write("a.txt")
        archive.writestr("in.txt", "in")
    with zipfile.ZipFile("z.zip", "a") as archive:
        archive.writestr("more.txt", "more")
    with zipfile.ZipFile("z.zip") as archive:
        archive.extractall("unpacked")
    assert sorted(os.listdir("unpacked")) == ["a.txt", "in.txt", "more.txt"]
    with tarfile.open("t.tar.gz", "w:gz") as archive:
        archive.add("data")
    with tarfile.open("t.tar.gz") as archive:
        archive.extractall("untarred", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # pyright: ignore[reportArgumentType]
    assert read("untarred/data/sub/c.txt") == "gamma"
    shutil.make_archive("made", "zip", "data")
    shutil.unpack_archive("made.zip", "made")
    assert read("made/sub/c.txt") == "gamma"


def route_sqlite():
    with contextlib.closing(sqlite3.connect("new.db")) as base:
        base.execute("create table t (x)")
        base.execute("insert into t values (1)")
        base.commit()
    with contextlib.closing(sqlite3.connect("file:new.db?mode=rw", uri=True)) as base:
        assert base.execute("select x from t").fetchall() == [(1,)]
    with contextlib.closing(sqlite3.connect(Path("real.db"))) as base:
        base.execute("delete from t")
        base.commit()
    with contextlib.closing(sqlite3.connect(f"file:{os.path.abspath('real.db')}?mode=ro", uri=True)) as base:
        assert base.execute("select x from t").fetchall() == []
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.execute("create table t (x)")
    with raises(sqlite3.OperationalError):
        sqlite3.connect("none/new.db")
    with raises(RefusedWrite):
        sqlite3.Connection("real.db")


def route_dbm_and_shelve():
    with shelve.open("shelf") as shelf:
        shelf["a"] = [1, 2]
    with shelve.open("shelf", "r") as shelf:
        assert shelf["a"] == [1, 2]
    with dbm.open("db", "n") as base:
        base["k"] = "v"
    with dbm.open("db", "r") as base:
        assert base["k"] == b"v"


def route_logging():
    log = logging.getLogger("route")
    handlers = [
        logging.FileHandler("run.log"),
        logging.handlers.RotatingFileHandler("a.txt", maxBytes=1, backupCount=2),
    ]
    for handler in handlers:
        log.addHandler(handler)
    log.warning("one")
    log.warning("two")
    for handler in handlers:
        log.removeHandler(handler)
        handler.close()
    assert read("run.log") == "one\ntwo\n"
    assert sorted(glob.glob("a.txt*")) == ["a.txt", "a.txt.1", "a.txt.2"]
    assert read("a.txt.2") == "alpha"


def route_other_writers():
    with codecs.open("c.txt", "w", "utf-8") as file:
        file.write("codecs")
    with open("j.json", "w") as file:
        json.dump({"a": 1}, file)
    with open("p.pkl", "wb") as file:
        pickle.dump([1], file)
    with fileinput.input("a.txt", inplace=True) as lines:
        for line in lines:
            print(line.upper(), end="")
    assert read("a.txt") == "ALPHA"


def route_threads():
    def work(number):
        for turn in range(20):
            with open(f"data/{number}.txt", "a") as file:
                file.write(str(turn % 10))
            os.makedirs(f"t/{number}/{turn}", exist_ok=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(read(f"data/{number}.txt") == "0123456789" * 2 for number in range(4))
    assert all(len(os.listdir(f"t/{number}")) == 20 for number in range(4))


def route_devices():
    with open(os.devnull, "w") as file:
        file.write("gone")
    with open("/dev/stdout", "w") as file:
        file.write("")
    assert open("/dev/urandom", "rb").read(1)
    with open("/dev/shm/pinchpoint_route", "w") as file:
        file.write("redirected")
    assert read("/dev/shm/pinchpoint_route") == "redirected"
    with open("/proc/self/comm", "w") as file:
        file.write("python")
    assert "Name" in read("/proc/self/status")
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("0")  # lands in scratch
    os.remove("/dev/null")
    assert not os.path.exists("/dev/null")
    assert stat.S_ISCHR(posix.stat("/dev/null").st_mode)


def route_real_folders_elsewhere():
    with open("/pinchpoint_route", "w") as file:
        file.write("root")
    assert "pinchpoint_route" in os.listdir("/")
    assert "usr" in os.listdir("/")
    os.makedirs("/usr/pinchpoint/route")
    assert os.path.isdir("/usr/pinchpoint/route")
    if os.path.isdir(os.path.expanduser("~")):
        home = Path("~/.pinchpoint_route").expanduser()
        home.write_text("home")
        assert home.read_text() == "home"


def route_scratch_path_is_the_same_file():
    with open("a.txt", "w") as file:
        file.write("x")
    alias = sys.argv[1] + "/files" + os.path.abspath("a.txt")
    assert read(alias) == "x"
    os.remove(alias)
    assert not os.path.exists("a.txt")


def route_kept_functions_are_redirected():
    with kept_open("kept.txt", "w") as file:
        file.write("kept")
    kept_mkdir("kept")
    kept_unlink("a.txt")
    assert os.path.exists("kept.txt")
    assert os.path.isdir("kept")
    assert not os.path.exists("a.txt")


def route_raw_functions_are_refused():
    folder = os.getcwd()
    for change in (
        lambda: posix.unlink("a.txt"),
        lambda: posix.rmdir(f"{folder}/empty"),
        lambda: posix.mkdir("raw"),
        lambda: posix.rename("a.txt", "b.txt"),
        lambda: posix.link("a.txt", "l"),
        lambda: posix.symlink("a.txt", "s"),
        lambda: posix.truncate("a.txt", 0),
        lambda: posix.chmod("a.txt", 0o600),
        lambda: posix.chown("a.txt", 0, 0),
        lambda: posix.utime("a.txt", (1, 1)),
        lambda: posix.open("a.txt", os.O_WRONLY),
        lambda: posix.open("/proc/self/cwd/a.txt", os.O_WRONLY),
        lambda: io.FileIO.__mro__[1]("a.txt", "w"),
        lambda: posix.chmod(os.open("a.txt", os.O_RDONLY), 0o600),
        lambda: socket.socket(socket.AF_UNIX).bind("sock"),
        lambda: os.rename("/dev/zero", "zero"),
        lambda: os.chmod("/dev/zero", 0o666),
    ):
        with raises(RefusedWrite):
            change()


def route_large_files_are_refused():
    with raises(RefusedWrite):
        open("large.bin", "r+b")
    with raises(RefusedWrite):
        os.rename("large.bin", "small.bin")
    with open("large.bin", "wb") as file:  # nothing to copy
        file.write(b"s")
    assert os.path.getsize("large.bin") == 1


def main(scratch, base, out):
    results = {}
    routes = {name: call for name, call in globals().items() if name.startswith("route_")}
    with Overlay(Path(scratch), copy_limit_bytes=100_000) as overlay:
        for name, route in routes.items():
            os.chdir(os.path.join(base, name))
            try:
                route()
                results[name] = ""
            except BaseException:
                results[name] = traceback.format_exc()
        os.chdir("/")
    results["written"] = overlay.written_files()
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
