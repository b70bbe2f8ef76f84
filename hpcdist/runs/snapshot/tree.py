"""What lies in a git work tree: its files as git lists them. Reads, and changes nothing."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdist.base.errors import HpcdistError, UserError

_TIMEOUT_S = 60.0
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_LISTED = ("--cached", "--others", "--exclude-standard")
_IGNORED = ("--others", "--ignored", "--exclude-standard", "--directory")


class NoWorkTreeError(UserError):
    """The working directory lies in no git work tree, or git cannot tell."""


@dataclass(frozen=True, kw_only=True)
class WorkTree:
    """A git work tree."""

    root: str
    commit: str | None
    """None before the first commit."""


def find_work_tree(cwd: str) -> WorkTree:
    """The work tree that `cwd` lies in; NoWorkTreeError where there is none."""
    done = _run(cwd, ["rev-parse", "--show-toplevel", "HEAD"])
    # Before the first commit git fails, and prints HEAD itself in place of its commit.
    root, _, head = os.fsdecode(done.stdout).removesuffix("\n").rpartition("\n")
    if not root:
        raise NoWorkTreeError(
            f"{cwd} is in no git work tree{_said_of_other_faults(done)}",
            hint="make one with git init, or leave the snapshot out with --no-snapshot",
        )
    return WorkTree(root=root, commit=head if _COMMIT.fullmatch(head) else None)


def tracked_and_untracked(root: str) -> list[str]:
    """Files that git tracks or would, relative to the root; those of nested work trees too.

    A file that is tracked but deleted is still among them.
    """
    return _list(root, _LISTED)


def ignored(root: str) -> list[str]:
    """What git ignores, relative to the root: a folder that is ignored whole is one entry."""
    # git lists a folder whose files are all ignored by a pattern, and then its files as well.
    found = {entry.rstrip("/") for entry in _ls_files(root, _IGNORED)} - {""}
    return sorted(path for path in found if found.isdisjoint(parents(path)))


def parents(path: str) -> list[str]:
    """The folders that a path lies in, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _list(folder: str, arguments: Sequence[str], prefix: str = "") -> list[str]:
    found: list[str] = []
    for entry in sorted(set(_ls_files(folder, arguments))):
        path = os.path.join(folder, entry)
        # A submodule, or a work tree that lies in this one: git lists the folder alone.
        if entry.endswith("/") or os.path.lexists(os.path.join(path, ".git")):
            name = entry.rstrip("/")
            if os.path.lexists(os.path.join(path, ".git")) and not os.path.islink(path):
                found += _list(os.path.join(folder, name), arguments, f"{prefix}{name}/")
        else:
            found.append(prefix + entry)
    return found


def _ls_files(folder: str, arguments: Sequence[str]) -> list[str]:
    done = _run(folder, ["ls-files", "-z", *arguments])
    if done.returncode:
        raise HpcdistError(
            f"git cannot list the files of {folder}: {_said(done)}",
            hint="see git status there, or leave the snapshot out with --no-snapshot",
        )
    return [os.fsdecode(entry) for entry in done.stdout.split(b"\0") if entry]


def _run(folder: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise NoWorkTreeError(
            "git is not installed, and says what a snapshot consists of",
            hint="install git, or leave the snapshot out with --no-snapshot",
        ) from None
    except subprocess.TimeoutExpired:
        raise HpcdistError(
            f"git {arguments[0]} has not answered after {_TIMEOUT_S:.0f} s in {folder}",
            hint="see whether the file system answers, or use --no-snapshot",
        ) from None


def _said_of_other_faults(done: subprocess.CompletedProcess[bytes]) -> str:
    """Nothing where there simply is no repository: git's words would only say so again."""
    said = _said(done)
    return "" if said.startswith("not a git repository") else f" that can be read: {said}"


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = " ".join(done.stderr.decode(errors="replace").split())
    return text.removeprefix("fatal: ") or f"exit code {done.returncode}"
