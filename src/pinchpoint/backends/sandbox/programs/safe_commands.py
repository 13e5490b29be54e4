"""`is_harmless`: whether a command only reads, so that a predicted script may run it.

Scripts look up the commit, the GPU and the host before they train. Only a short list of programs that print
such information is allowed. A command that might write is not harmless. Where the program must be is decided
by `program_paths`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence

_LOOK = {
    "arch",
    "basename",
    "cat",
    "cut",
    "df",
    "dirname",
    "du",
    "echo",
    "false",
    "fc-list",
    "free",
    "getconf",
    "grep",
    "head",
    "id",
    "ls",
    "lsb_release",
    "lscpu",
    "lspci",
    "nproc",
    "objdump",
    "printenv",
    "ps",
    "pwd",
    "readelf",
    "readlink",
    "realpath",
    "tail",
    "tr",
    "true",
    "tty",
    "uname",
    "uptime",
    "wc",
    "which",
    "whoami",
}
_TOOLS = {
    "c++",
    "cargo",
    "cc",
    "clang",
    "clang++",
    "cmake",
    "ffmpeg",
    "g++",
    "gcc",
    "hipcc",
    "make",
    "ninja",
    "nvcc",
    "rustc",
}
SHELLS = ("sh", "bash", "dash", "zsh")
# Every program that a command may use; without its arguments, one of them may write.
PROGRAMS = (*_LOOK, *_TOOLS, *SHELLS, "git", "nvidia-smi", "hostname", "date", "ldconfig", "sysctl")
_VERSION = {"--version", "-version", "-V", "-dumpversion", "-dumpmachine"}
_HOSTNAME = {
    "-f",
    "-s",
    "-i",
    "-I",
    "-d",
    "--fqdn",
    "--long",
    "--short",
    "--ip-address",
    "--all-ip-addresses",
    "--domain",
}
_NVIDIA_SMI = re.compile(
    r"-[Lqxhidm]|topo|\d+(,\d+)*|--(list-gpus|query|xml-format|help|id=|display=|query-|format=).*"
)
_GIT_READS = {
    "rev-parse",
    "describe",
    "log",
    "status",
    "diff",
    "show",
    "rev-list",
    "ls-files",
    "ls-tree",
    "cat-file",
}
# `describe --dirty` always refreshes the index.
_GIT_WRITES = (
    "--dirty",
    "--broken",
    "--output",
    "--ext-diff",
    "--textconv",
    "-c",
    "--exec-path",
    "--config-env",
)
_QUIET = re.compile(r"\s*(2>&1|[12&]?>\s*/dev/null)")
_SHELL_MAGIC = set(";&<>$`(){}\n\\")


def is_harmless(command: Sequence[str]) -> bool:
    """Whether a program with these arguments only prints information."""
    if not command:
        return False
    program, arguments = os.path.basename(command[0]), list(command[1:])
    match program:
        case "git":
            return _git_only_reads(arguments)
        case "nvidia-smi":
            return all(_NVIDIA_SMI.fullmatch(argument) for argument in arguments)
        case "hostname":
            return all(argument in _HOSTNAME for argument in arguments)
        case "date":
            return all(
                argument.startswith(("+", "-I")) or argument in ("-u", "--utc", "-R")
                for argument in arguments
            )
        case "ldconfig":
            return arguments in (["-p"], ["--print-cache"])
        case "sysctl":
            names = arguments[1:] if arguments[:1] in (["-n"], ["-a"]) else arguments
            return not any(name.startswith("-") or "=" in name for name in names)
    if program in _TOOLS:
        return len(arguments) == 1 and arguments[0] in _VERSION
    return program in _LOOK


def is_harmless_in_shell(text: str, is_trusted: Callable[[str], bool] = bool) -> bool:
    """Whether a shell command line consists only of harmless programs piped into each other.

    is_trusted: whether a program, by the name or path in the line, is one that may run
    """
    plain = _QUIET.sub("", text)
    if _SHELL_MAGIC & set(plain):
        return False
    try:
        commands = [shlex.split(part) for part in plain.split("|")]
    except ValueError:  # an open quote, which the shell would refuse too
        return False
    return all(is_harmless(command) and is_trusted(command[0]) for command in commands)


def _git_only_reads(arguments: list[str]) -> bool:
    while arguments and arguments[0] in ("-C", "--no-pager", "--git-dir", "--work-tree"):
        arguments = arguments[2 if arguments[0] != "--no-pager" else 1 :]
    while arguments and arguments[0].startswith(("--git-dir=", "--work-tree=")):
        arguments = arguments[1:]
    if not arguments or any(argument.startswith(_GIT_WRITES) for argument in arguments):
        return False
    verb, rest = arguments[0], arguments[1:]
    match verb:
        case "branch":
            return all(argument in ("--show-current", "-a", "-v", "--list") for argument in rest)
        case "config":
            return bool(rest) and rest[0] in ("--get", "--list", "-l")
        case "remote":
            return not rest or rest[0] in ("-v", "get-url")
        case "symbolic-ref":
            return (
                len([argument for argument in rest if not argument.startswith("-")]) == 1 and "-d" not in rest
            )
    return verb in _GIT_READS or arguments in (["--version"], ["version"])
