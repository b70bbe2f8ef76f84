"""Loading a cluster profile: from hpcdist.yaml, and flags, to one checked value.

Which one: the name that is asked for, else HPCDIST_CLUSTER, else `default` of the project's file,
else of the user's, else the only one there is, else none: an empty profile. A cluster that both
files describe is merged key by key; the project's file wins, and flags win over both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.errors import JobError, ProfileError
from hpcdist.base.nearest import nearest, nearest_first
from hpcdist.cluster.files import ProfileFile, profile_files, shown_path, user_file
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.rules import Origin, check_rules
from hpcdist.cluster.shipped_files import shipped_names
from hpcdist.job import Flag
from hpcdist.job.check import check_values

CLUSTER_VARIABLE = "HPCDIST_CLUSTER"
DEFAULT_ORIGIN = "default"


class LoadedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A checked profile, and where it came from."""

    name: str | None
    """None where no file has a profile that counts."""
    profile: ClusterProfile
    origins: dict[str, str]
    """Every key of the profile -> the file or flag that its value came from, or "default"."""
    files: list[str] = []
    """The files that were read, the project's first."""
    known: list[str] = []
    """The names of all profiles in them."""


NO_PROFILE = LoadedProfile(
    name=None,
    profile=ClusterProfile(),
    origins=dict.fromkeys(ClusterProfile.__struct_fields__, DEFAULT_ORIGIN),
)
"""What a run on this machine has, whatever the files say."""


def load_profile(
    name: str | None = None, *, flags: Mapping[str, Flag] | None = None
) -> LoadedProfile:
    """Find, merge and check a profile; every mistake in it is a ProfileError.

    `flags` maps keys of the profile to flags.
    """
    files = profile_files()
    chosen = _choose(name, files)
    return _loaded(chosen, files, flags or {})


def list_profiles() -> tuple[str | None, dict[str, LoadedProfile | ProfileError]]:
    """The name of the default one, and every profile, or what is wrong with it, by name."""
    files = profile_files()
    profiles: dict[str, LoadedProfile | ProfileError] = {}
    for name in _known(files):
        try:
            profiles[name] = _loaded(name, files, {})
        except ProfileError as error:
            profiles[name] = error
    return _choose(None, files), profiles


def _loaded(
    name: str | None, files: Sequence[ProfileFile], flags: Mapping[str, Flag]
) -> LoadedProfile:
    values: dict[str, Any] = {}
    origins = dict.fromkeys(ClusterProfile.__struct_fields__, DEFAULT_ORIGIN)
    for file in reversed(files):  # the project's file comes last, and wins
        if name is not None and name in file.clusters:
            found = _checked(file, name)
            values |= found
            origins |= dict.fromkeys(found, file.shown)
    given = {key: flag.value for key, flag in flags.items()}
    _check(given, lambda key: flags[key].name if key in flags else "")
    return LoadedProfile(
        name=name,
        profile=msgspec.convert(values | given, ClusterProfile),
        origins=origins | {key: flag.name for key, flag in flags.items()},
        files=[file.shown for file in files],
        known=_known(files),
    )


def _checked(file: ProfileFile, name: str) -> dict[str, Any]:
    values = {key: _in_full(key, value) for key, value in file.clusters[name].items()}
    _check(values, lambda _: f"{file.shown}: cluster {name}")
    if values.get("python") is not None:
        values["python"] = _interpreter(values["python"], file.path.parent)
    return values


def _check(values: Mapping[str, Any], origin: Origin) -> None:
    try:
        check_values(values, ClusterProfile, lambda path: origin(path[0]), whole="a cluster")
        check_rules(values, origin)
    except JobError as error:
        raise ProfileError(error.message, hint=error.hint) from None


def _in_full(key: str, value: Any) -> Any:
    """A key that has nothing behind it is empty; several lines of bash may be one text."""
    if value is None and key in {"setup", "directives"}:
        return []
    if value is None and key in {"environment", "lsf"}:
        return {}
    return [value] if key == "setup" and isinstance(value, str) else value


def _interpreter(python: str, folder: Path) -> str:
    """With ~ expanded; a path is relative to the file, a bare name is for PATH."""
    expanded = os.path.expanduser(python)
    return os.path.abspath(folder / expanded) if "/" in expanded else expanded


def _choose(name: str | None, files: Sequence[ProfileFile]) -> str | None:
    known = _known(files)
    asked = [
        ("", name),
        (f"{CLUSTER_VARIABLE}: ", os.environ.get(CLUSTER_VARIABLE) or None),
        *((f"{file.shown}: default: ", file.default) for file in files),
    ]
    for origin, wanted in asked:
        if wanted is not None:
            if wanted not in known:
                raise _unknown(wanted, origin, known, files)
            return wanted
    return known[0] if len(known) == 1 else None


def _known(files: Sequence[ProfileFile]) -> list[str]:
    return list(dict.fromkeys(name for file in files for name in file.clusters))


def _unknown(
    name: str, origin: str, known: Sequence[str], files: Sequence[ProfileFile]
) -> ProfileError:
    message = f"{origin}there is no cluster called {name!r}"
    ships = name in shipped_names()
    if not files:
        how = f"copy {name} --write" if ships else "detect --write"
        return ProfileError(
            f"{message}, for there is no hpcdist.yaml",
            hint=f"looked in this folder, those above it, and {shown_path(user_file())}; "
            f"`hpcdist cluster {how}` makes one",
        )
    near = nearest(name, known)
    listed = f"clusters are {', '.join(nearest_first(name, known)) or 'none'}"
    where = f"in {' and '.join(file.shown for file in files)}"
    if ships:
        where += f"; `hpcdist cluster copy {name}` prints the one that comes with hpcdist"
    return ProfileError(
        message, hint=f"did you mean {near}? {listed}, {where}" if near else f"{listed}, {where}"
    )
