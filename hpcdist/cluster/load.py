"""Load a cluster profile: from hpcdist.yaml, and flags, to one checked value.

One file counts: the project's hpcdist.yaml, which is in the current directory or in the nearest
folder above it, up to the root of the git repository; else the user's, which is
$XDG_CONFIG_HOME/hpcdist/hpcdist.yaml, by default ~/.config/hpcdist/hpcdist.yaml.

The profile is the one that the user names, else HPCDIST_CLUSTER, else `default` of the file, else
the only one there is, else none: an empty profile. Flags win over the file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.errors import JobError, ProfileError
from hpcdist.base.files import read_bytes, shipped_folder
from hpcdist.base.ownership import doors, owner_id, owner_name
from hpcdist.base.secrets import holds_secret, looks_secret
from hpcdist.base.text import nearest, nearest_first
from hpcdist.cluster.channels import NONE, parse_channel
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.schedulers import LOCAL
from hpcdist.job.check import convert_values, show
from hpcdist.job.load import Flag
from hpcdist.job.spec import Section

FILE_NAME = "hpcdist.yaml"
CLUSTER_VARIABLE = "HPCDIST_CLUSTER"
PROFILES_VARIABLE = "HPCDIST_PROFILES"
"""Names a file that counts in place of the project's and the user's."""
DEFAULT_ORIGIN = "default"
CHANNELS_FLAG = "--notify"

_RUN_KEYS = ("setup", "python", "environment", "directives", "notify", "container.options")
_RUN_KEYS_OF_SECTIONS = ("launcher", "image", "python")
"""Keys whose values are executed as the user, or decide what is."""
_ASSIGNMENT = re.compile(r"""(?:^|[\s;&,=])([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s;&,]*)""")


class _Contents(Section, frozen=True, kw_only=True):
    """The keys of an hpcdist.yaml."""

    default: str | None = None
    clusters: dict[str, dict[str, Any] | None] = {}  # noqa: RUF012 - msgspec gives every struct its own


class _ProfileFile(msgspec.Struct, frozen=True, kw_only=True):
    """The hpcdist.yaml: its profiles as plain values, unchecked."""

    path: Path
    shown: str
    """Its name in messages."""
    default: str | None = None
    clusters: dict[str, dict[str, Any]] = {}


class LoadedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A checked profile, and where it came from."""

    name: str | None
    """None where no file has a profile that counts."""
    profile: ClusterProfile
    origins: dict[str, str]
    """Every key of the profile -> the file or flag that its value came from, or "default"."""
    notes: list[str] = []
    """Notes for the user: who can change the file, or that no profile of it counts."""
    left_out: list[str] = []
    """Nodes that one submission leaves out, beside those of the profile."""

    @property
    def asked(self) -> ClusterProfile:
        """The profile with the nodes that the submission leaves out."""
        exclude = [*dict.fromkeys([*self.profile.exclude, *self.left_out])]
        return msgspec.structs.replace(self.profile, exclude=exclude)


NO_PROFILE = LoadedProfile(
    name=None,
    profile=ClusterProfile(),
    origins=dict.fromkeys(ClusterProfile.__struct_fields__, DEFAULT_ORIGIN),
)
"""The profile of a run on this machine, whatever the files say."""


# The file.


def _profile_file() -> _ProfileFile:
    """Return the hpcdist.yaml that counts; one without profiles where there is none."""
    if only := os.environ.get(PROFILES_VARIABLE):
        return _read(Path(only).absolute())
    try:
        here = Path.cwd()
    except FileNotFoundError:
        hint = "go to one that exists"
        raise ProfileError("the current directory does not exist any more", hint=hint) from None
    for folder in (here, *here.parents):
        path = folder / FILE_NAME
        if os.path.lexists(path):
            # In /tmp anyone can put one above our folder, and its `setup` would be run.
            owner = path.lstat().st_uid
            if folder.stat().st_mode & stat.S_IWOTH and owner not in {0, os.getuid()}:
                raise ProfileError(
                    f"{path} belongs to another user (number {owner}), in a folder that everyone "
                    "can write",
                    hint=f"have your own {FILE_NAME} in the folder of the project; a copy, if you "
                    "trust it",
                )
            return _read(path)
        if os.path.lexists(folder / ".git"):
            break
    path = user_file()
    return _read(path) if os.path.lexists(path) else _ProfileFile(path=path, shown="")


def user_file() -> Path:
    """Return the path of the user's file, whether it exists or not."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # such a value is to be ignored, the XDG specification says
        folder = os.path.expanduser("~/.config")
    return Path(folder, "hpcdist", FILE_NAME)


def shown_path(path: Path) -> str:
    """Return a path as messages show it: short where it is in the current directory or the home."""
    home = os.path.expanduser("~")
    if str(path.parent) == os.getcwd():
        return path.name
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _read(path: Path) -> _ProfileFile:
    from hpcdist.job.yaml_text import MOST_BYTES, parse_keys

    shown = shown_path(path)
    try:
        content = read_bytes(path, most_bytes=MOST_BYTES)
        values = parse_keys(content, shown, hint="it has the keys default and clusters") or {}
        if values.get("clusters", ...) is None:
            del values["clusters"]
        contents = convert_values(values, _Contents, lambda _: shown, whole="the file")
    except OSError as error:
        raise ProfileError(
            f"{shown} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from None
    except JobError as error:
        raise ProfileError(error.message, hint=error.hint) from None
    clusters = {name: profile or {} for name, profile in contents.clusters.items()}
    return _ProfileFile(path=path, shown=shown, default=contents.default, clusters=clusters)


def all_profiles() -> tuple[str | None, dict[str, dict[str, Any]]]:
    """Return the default's name, and the keys of all profiles as they stand in the file."""
    file = _profile_file()
    return _choose(None, file), file.clusters


def shipped_files() -> dict[str, str]:
    """Return the texts of the files that ship by their names; the first line says what each is
    for."""
    folder = shipped_folder("templates") / "clusters"
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.yaml"))}


def shipped_file(name: str) -> str:
    """Return the text of a file; ProfileError with the nearest names where there is none."""
    if name not in (shipped := shipped_files()):
        listed = ", ".join(nearest_first(name, shipped))
        message = f"no profile called {name!r} comes with hpcdist"
        raise ProfileError(message, hint=f"those that ship are {listed}")
    return shipped[name]


# The profile that counts.


def load_profile(
    name: str | None = None, *, flags: Mapping[str, Flag] | None = None
) -> LoadedProfile:
    """Find and check a profile; every mistake in it is a ProfileError.

    `flags` maps keys of the profile to flags.
    """
    file = _profile_file()
    return _loaded(_choose(name, file), file, flags or {})


def with_channels(loaded: LoadedProfile, notify: Sequence[str]) -> LoadedProfile:
    """Return the profile with the channels of --notify in the place of its own, if there are any.

    Raises ProfileError for what is no channel.
    """
    if not notify:
        return loaded
    channels = [] if list(notify) == [NONE] else list(notify)
    _check({"notify": channels}, lambda _: CHANNELS_FLAG)
    return msgspec.structs.replace(
        loaded,
        profile=msgspec.structs.replace(loaded.profile, notify=channels),
        origins=loaded.origins | {"notify": CHANNELS_FLAG if channels else DEFAULT_ORIGIN},
    )


def _loaded(name: str | None, file: _ProfileFile, flags: Mapping[str, Flag]) -> LoadedProfile:
    values: dict[str, Any] = {}
    notes: list[str] = []
    if name is not None:
        values = _profile_values(file, name)
        notes = _notes_on_writers(file, values)
    elif file.clusters:
        listed = ", ".join(file.clusters)
        said = f"no cluster profile is used: {file.shown} has {listed} and no default"
        notes = [f"{said}; choose one with --cluster"]
    given = {key: flag.value for key, flag in flags.items()}
    _check(given, lambda key: flags[key].name)
    origins = dict.fromkeys(ClusterProfile.__struct_fields__, DEFAULT_ORIGIN)
    origins |= dict.fromkeys(values, file.shown)
    return LoadedProfile(
        name=name,
        profile=msgspec.convert(values | given, ClusterProfile),
        origins=origins | {key: flag.name for key, flag in flags.items()},
        notes=notes,
    )


def require_trusted_host(loaded: LoadedProfile, *, is_named: bool) -> None:
    """Raise ProfileError for a host of a profile that this user may not have chosen: one from a
    file that others can write, and one that came with a project and `is_named` by nothing else."""
    origin, host = loaded.origins["host"], loaded.profile.host
    if origin == DEFAULT_ORIGIN or origin.startswith("--"):
        return
    path = Path(origin).expanduser().absolute()
    said = f"{origin}: clusters.{loaded.name}.host is {host}"
    if others := doors(path):
        raise ProfileError(
            f"{said}, and {others[0]}: your work tree would go to a host of their choice",
            hint=f"name the host yourself with --host, or in {shown_path(user_file())}",
        )
    is_users_own = path == user_file() or bool(os.environ.get(PROFILES_VARIABLE))
    if not is_users_own and not is_named:
        raise ProfileError(
            f"{said}, which you have never named on this machine: the file may have come with the "
            "project",
            hint=f"if you know the host, name it once: hpcdist runs --host {host}",
        )


def _notes_on_writers(file: _ProfileFile, values: Mapping[str, Any]) -> list[str]:
    """Return who else can change what is executed, where somebody can.

    Raises ProfileError where that is everybody.
    """
    sections = {name: of for name, of in values.items() if isinstance(of, dict)}
    given = {**values, **{f"{name}.{key}": of[key] for name, of in sections.items() for key in of}}
    keys = [
        key
        for key, value in given.items()
        if value and (key in _RUN_KEYS or key.partition(".")[2] in _RUN_KEYS_OF_SECTIONS)
    ]
    if not keys or not (found := doors(file.path)):
        return []
    what = " and ".join(keys)
    if door := next((door for door in found if door.who == "everyone"), None):
        raise ProfileError(
            f"{file.shown} has {what}, and {door}: it would be run as you",
            hint=f"close it with: chmod o-w {door.path}, or have your own {FILE_NAME} in a "
            "folder that only you can write",
        )
    others = [str(door) for door in found if (door.path, door.who) != (file.path, "owner")]
    also = f"; {' and '.join(others)}" if others else ""
    owner = owner_name(owner_id(file.path))
    return [f"{what} from {file.path}, which belongs to {owner}, will be run as you{also}"]


def _profile_values(file: _ProfileFile, name: str) -> dict[str, Any]:
    values, shown = dict(file.clusters[name]), f"{file.shown}: cluster {name}"
    # A key that has nothing behind it is empty; several lines of bash may be one text.
    for key, usual in msgspec.structs.asdict(ClusterProfile()).items():
        if key in values and values[key] is None and isinstance(usual, list | dict | Section):
            values[key] = [] if isinstance(usual, list) else {}
    if isinstance(values.get("setup"), str):
        values["setup"] = [values["setup"]]
    _check(values, lambda _: shown)
    # Paths are relative to the file; a bare name is a program of PATH, or the name of an image.
    if python := values.get("python"):
        values["python"] = python = os.path.expanduser(python)
        if "/" in python or python in {".", ".."}:
            values["python"] = path = os.path.abspath(file.path.parent / python)
            if os.path.isdir(path):  # other files may be there on the nodes, or at a host, only
                hint = f"name the interpreter in it, such as {python}/bin/python"
                raise ProfileError(f"{shown}: python is {path}, which is a folder", hint=hint)
    image = (values.get("container") or {}).get("image")
    if image and image.startswith((".", "~")):
        path = os.path.abspath(file.path.parent / os.path.expanduser(image))
        values["container"] = {**values["container"], "image": path}
    return values


def _check(values: Mapping[str, Any], origin: Callable[[str], str]) -> None:
    """Raise ProfileError for the first wrong value; `origin` names the place of a key's value."""
    try:
        convert_values(values, ClusterProfile, lambda path: origin(path[0]), whole="a cluster")
    except JobError as error:
        raise ProfileError(error.message, hint=error.hint) from None
    for key, problem, hint in _problems(values):
        raise ProfileError(f"{origin(key)}: {key} {problem}", hint=hint)


def _problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what the types do not say: a key, what is wrong with it, and what to do. All of a
    profile stands in scripts and run directories, which others can often read, so a secret is
    wrong; what is computed when the job runs, $(cat ~/token), is none."""
    for name, value in values.get("environment", {}).items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            hint = "names consist of letters, digits and _, and do not begin with a digit"
            yield "environment", f"has {show(name)}, which is not the name of a variable", hint
        if "\0" in value:
            yield "environment", f"has a NUL character in {name}", "remove it"
    for channel in values.get("notify", []):
        try:
            parse_channel(channel)
        except ValueError as error:
            yield "notify", *error.args
    for key, value in values.items():
        texts = list(_texts(value))
        given = [pair for text in texts for pair in _ASSIGNMENT.findall(text)]
        for name, text in value.items() if key == "environment" else given:
            if looks_secret(name, text.strip("\"'")):
                problem = f"gives {name} a value that looks secret, and would appear in every job's"
                hint = f"leave {name} out, and export it in the shell that submits"
                yield key, f"{problem} script", hint
        if any(holds_secret(text) or (key == "setup" and looks_secret("", text)) for text in texts):
            problem = "holds a value that looks secret, and would appear in every job's script"
            hint = "leave it out, and export it in the shell that submits"
            yield key, problem, f"{hint}, or read it from a private file"


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in a value of a profile."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _choose(name: str | None, file: _ProfileFile) -> str | None:
    for origin, wanted in (
        ("", name),
        (f"{CLUSTER_VARIABLE}: ", os.environ.get(CLUSTER_VARIABLE) or None),
        (f"{file.shown}: default: ", file.default),
    ):
        if wanted in file.clusters:
            return wanted
        if wanted is not None:
            near = nearest(wanted, file.clusters)
            hint = f"did you mean {near}? " if near else ""
            listed = ", ".join(nearest_first(wanted, file.clusters)) or "none"
            hint += f"clusters are {listed}, in {file.shown or 'no hpcdist.yaml'}"
            if wanted in shipped_files():
                hint += f"; `hpcdist cluster copy {wanted} --write` makes one of the shipped file"
            elif not file.shown:
                hint += f" here, above, or at {shown_path(file.path)}; "
                hint += "`hpcdist cluster detect --write` makes one"
            raise ProfileError(f"{origin}there is no cluster called {wanted!r}", hint=hint)
    return next(iter(file.clusters)) if len(file.clusters) == 1 else None


def choose_cluster(
    scheduler: str | None, cluster: str | None, flags: Mapping[str, Flag]
) -> tuple[str, LoadedProfile]:
    """Return the scheduler by name, or `auto`, and the profile.

    A run on this machine that was asked for by name goes by no profile: what hpcdist.yaml says is
    about clusters, and this machine may be the laptop on which the project is written.

    Raises ProfileError where the profile is wrong, or is for another scheduler.
    """
    if scheduler == LOCAL:
        given = [f"--cluster {cluster}"] if cluster is not None else []
        given += [f"{flag.name} {flag.value}" for flag in flags.values()]
        if given:
            raise ProfileError(
                f"{given[0]} is for a cluster, but the run is on this machine",
                hint="leave out one of the two",
            )
        return scheduler, NO_PROFILE
    loaded = load_profile(cluster, flags=flags)
    wanted = loaded.profile.scheduler
    if scheduler in {None, "auto", wanted}:
        return wanted, loaded
    if wanted == "auto":
        return scheduler or wanted, loaded
    raise ProfileError(
        f"{loaded.origins['scheduler']}: cluster {loaded.name} is for {wanted}, not {scheduler}",
        hint=f"leave out the scheduler {scheduler}, or choose another cluster with --cluster",
    )
