"""Where cluster profiles stand: hpcdist.yaml of the project, and of the user.

The project's is the one in the current directory, else in the nearest folder above it, up to the
root of the git repository. The user's is $XDG_CONFIG_HOME/hpcdist/hpcdist.yaml, by default
~/.config/hpcdist/hpcdist.yaml.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.errors import JobError, ProfileError
from hpcdist.job.check import check_values
from hpcdist.job.spec import Section

FILE_NAME = "hpcdist.yaml"


class _Contents(Section, frozen=True, kw_only=True):
    """The keys of an hpcdist.yaml."""

    default: str | None = None
    clusters: dict[str, dict[str, Any] | None] = {}  # noqa: RUF012 - msgspec gives every struct its own


class ProfileFile(msgspec.Struct, frozen=True, kw_only=True):
    """One hpcdist.yaml: its profiles as plain values, unchecked."""

    path: Path
    shown: str
    """What messages call it."""
    default: str | None
    clusters: dict[str, dict[str, Any]]


def profile_files() -> list[ProfileFile]:
    """The hpcdist.yaml files that count, the project's before the user's."""
    paths = [path for path in (project_file(), user_file()) if path is not None]
    return [_read(path) for path in dict.fromkeys(paths) if os.path.lexists(path)]


def user_file() -> Path:
    """Where the user's file is, or would be."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # such a value is to be ignored, the XDG specification says
        folder = os.path.expanduser("~/.config")
    return Path(folder, "hpcdist", FILE_NAME)


def project_file() -> Path | None:
    """The project's file, if there is one."""
    for folder in _project_folders():
        path = folder / FILE_NAME
        if os.path.lexists(path):
            _refuse_planted(path)
            return path
    return None


def shown_path(path: Path) -> str:
    """A path as messages show it: short where it is in the current directory or the home."""
    home = os.path.expanduser("~")
    if path.parent == _cwd():
        return path.name
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _project_folders() -> Iterator[Path]:
    here = _cwd()
    for folder in (here, *here.parents):
        yield folder
        if os.path.lexists(folder / ".git"):
            return


def _cwd() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ProfileError(
            "the current directory does not exist any more", hint="go to one that exists"
        ) from None


def _refuse_planted(path: Path) -> None:
    """In /tmp anyone can put an hpcdist.yaml above our folder, and its `setup` would be run."""
    shared = path.parent.stat().st_mode & stat.S_IWOTH
    owner = path.lstat().st_uid
    if shared and owner not in {0, os.getuid()}:
        raise ProfileError(
            f"{path} belongs to another user (number {owner}), in a folder that everyone can write",
            hint=f"have your own {FILE_NAME} in the folder of the project; a copy, if you trust it",
        )


def _read(path: Path) -> ProfileFile:
    shown = shown_path(path)
    values = _parse(path, shown)
    if values.get("clusters", ...) is None:
        del values["clusters"]
    try:
        check_values(values, _Contents, lambda _: shown, whole="the file")
    except JobError as error:
        raise ProfileError(error.message, hint=error.hint) from None
    contents = msgspec.convert(values, _Contents)
    clusters = {name: profile or {} for name, profile in contents.clusters.items()}
    return ProfileFile(path=path, shown=shown, default=contents.default, clusters=clusters)


def _parse(path: Path, shown: str) -> dict[str, Any]:
    from hpcdist.job.yaml12 import YamlError, parse_yaml

    try:
        values = parse_yaml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ProfileError(
            f"{shown} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise ProfileError(
            f"{shown} is not UTF-8 text: byte {error.start}", hint="save the file as UTF-8"
        ) from None
    except YamlError as error:
        raise ProfileError(
            f"{shown}: not valid YAML: {error}", hint="check the indentation and the quotes there"
        ) from None
    if values is not None and not isinstance(values, dict):
        raise ProfileError(
            f"{shown}: the file holds a {type(values).__name__}, must be keys with values",
            hint="it has the keys default and clusters",
        )
    return values or {}
