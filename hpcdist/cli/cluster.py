"""`hpcdist cluster`: the profiles of hpcdist.yaml, and a first one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base import files
from hpcdist.base.errors import ProfileError, SchedulerError, UserError
from hpcdist.base.text import harmless
from hpcdist.cli.host import detect_there
from hpcdist.cli.options import Choice, host_option, json_option, with_options
from hpcdist.cli.printing import note, print_columns, print_json, say, writing
from hpcdist.cluster.schedulers import LOCAL, SCHEDULERS

if TYPE_CHECKING:
    from hpcdist.cluster.load import LoadedProfile


@click.group
def cluster() -> None:
    """Show, detect and copy cluster profiles.

    A profile names a partition, an account, modules to load and so on. Profiles are in
    hpcdist.yaml: the project's (in this folder or one above it, up to the root of the git
    repository), and the user's (~/.config/hpcdist/hpcdist.yaml). The project's values win, key by
    key.
    """


@cluster.command("list")
@json_option
def list_(*, as_json: bool) -> None:
    """List the profiles; * marks the one that is used without --cluster."""
    from hpcdist.cluster.load import list_profiles

    default, profiles = list_profiles()
    listed: list[dict[str, Any]] = []
    for name, profile in profiles.items():
        told = {"name": name, "default": name == default, "scheduler": None, "partition": None}
        if isinstance(profile, ProfileError):
            listed.append(told | {"error": profile.message})
            continue
        told |= {key: getattr(profile.profile, key) for key in ("scheduler", "partition")}
        listed.append(told | {"error": None})
    if as_json:
        print_json(listed)
        return
    if not listed:
        _note_nothing()
        return
    rows = [
        (
            f"{each['name']} *" if each["default"] else each["name"],
            each["scheduler"] or "-",
            each["partition"] or "-",
            f"broken: {each['error']}" if each["error"] else "",
        )
        for each in listed
    ]
    print_columns(("CLUSTER", "SCHEDULER", "PARTITION", "MISTAKE"), rows)


@cluster.command
@click.argument("name", metavar="[NAME]", required=False)
@json_option
def show(*, name: str | None, as_json: bool) -> None:
    """Print the values of a profile, and where each comes from.

    Without NAME, show the profile that `hpcdist submit` would use.
    """
    from hpcdist.cluster.load import load_profile

    loaded = load_profile(name)
    if as_json:
        print_json(loaded)
        return
    if loaded.name is not None:
        note(f"cluster {loaded.name}")
    elif loaded.notes:
        note(*loaded.notes)
    else:
        _note_nothing()
    print_columns(("KEY", "VALUE", "FROM"), _rows(loaded))


def _rows(loaded: LoadedProfile) -> list[tuple[str, str, str]]:
    """Return a row per value; of lists and of the environment one per item."""
    import msgspec

    values = msgspec.to_builtins(loaded.profile)
    origins = dict(loaded.origins)
    for name in SCHEDULERS:
        for key, value in (values.pop(name, None) or {}).items():
            if loaded.profile.scheduler in {"auto", name}:  # no other reads them
                path = f"{name}.{key}"
                values[path] = " ".join(value) if isinstance(value, list) else value
                origins[path] = loaded.origins[name]
    rows = []
    for key, value in values.items():
        items = value if isinstance(value, list) else [value]
        if isinstance(value, dict):
            items = [f"{name}={text}" for name, text in value.items()]
        lines = [line for item in items if item is not None for line in str(item).splitlines()]
        for number, line in enumerate(lines or ["-"]):
            rows.append(("", line, "") if number else (key, line, origins[key]))
    return rows


_write_options = with_options(
    click.option("--write", is_flag=True, help="Write ./hpcdist.yaml."),
    click.option("--out", metavar="FILE", help="Write to this file, for example the user's."),
    click.option("--force", is_flag=True, help="Overwrite an existing file."),
)


@cluster.command
@_write_options
@host_option
@click.option("--name", metavar="N", help="Name of the default profile. [default: its partition's]")
@click.option(
    "--scheduler",
    type=Choice([name for name in SCHEDULERS if name != LOCAL]),
    help="Scheduler to ask. [default: the one that this machine has]",
)
def detect(
    *, write: bool, out: str | None, force: bool, name: str | None, scheduler: str | None
) -> None:
    """Make a first hpcdist.yaml from what the scheduler reports.

    It is printed, or written with --write or --out. Every partition with GPUs, and the default
    one, gets a profile. Run it on a login node, or with --host from elsewhere.
    """
    from hpcdist.cluster.site import first_file
    from hpcdist.schedulers import detect_scheduler, load_scheduler

    path = _place(write=write, out=out, force=force)
    if (there := detect_there(click.get_current_context())) is not None:
        _give(there, path)
        return
    try:
        chosen = scheduler or detect_scheduler()
    except SchedulerError as error:
        raise SchedulerError(error.message, hint="run it on a login node of the cluster") from None
    found = load_scheduler(chosen)
    site = found.detect_site()
    text = first_file(site, name=name)
    note(*site.notes)
    _give(text, path)


@cluster.command
@click.argument("name", metavar="[NAME]", required=False)
@_write_options
def copy(*, name: str | None, write: bool, out: str | None, force: bool) -> None:
    """Copy an hpcdist.yaml that comes with hpcdist; without NAME, list them.

    It is printed, or written with --write or --out.
    """
    from hpcdist.cluster.load import shipped_file, shipped_files

    if name is not None:
        text = shipped_file(name)
        _give(text, _place(write=write, out=out, force=force))
    elif write or out is not None:
        raise click.UsageError(f"name the file to write: {', '.join(shipped_files())}")
    else:
        first_lines = {name: text.splitlines()[0] for name, text in shipped_files().items()}
        rows = [(name, line.removeprefix("#").strip()) for name, line in first_lines.items()]
        print_columns(("NAME", "FOR"), rows)


def _place(*, write: bool, out: str | None, force: bool) -> Path | None:
    """Return the file to write, which is not there or may be overwritten; None: print the text."""
    if write and out is not None:
        raise click.UsageError("--write and --out contradict each other")
    if not (write or out):
        return None
    path = Path(os.path.expanduser(out) if out else "hpcdist.yaml")
    if os.path.lexists(path) and not force:
        raise UserError(
            f"{path} exists already, and was not changed",
            hint="without --write and --out the profiles are printed, to copy from; "
            "--force overwrites the file",
        )
    return path


def _give(text: str, path: Path | None) -> None:
    if path is None:
        print(harmless(text), end="")
        return
    with writing(path, hint="choose another file with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, text)
    say(f"wrote {path}; read it, and correct what is wrong")


def _note_nothing() -> None:
    from hpcdist.cluster.load import shown_path, user_file

    note(
        f"there is no profile: no hpcdist.yaml here, above, or at {shown_path(user_file())}; "
        f"`hpcdist cluster detect --write` makes one on a login node, `hpcdist cluster copy` lists "
        f"those that come with hpcdist"
    )
