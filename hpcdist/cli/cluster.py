"""`hpcdist cluster`: the profiles of hpcdist.yaml, and a first one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.base.text import harmless
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, json_option
from hpcdist.cli.printing import note, print_columns, print_json, say, writing
from hpcdist.cluster.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from hpcdist.cluster.load import LoadedProfile


@click.group
def cluster() -> None:
    """Show, detect and copy cluster profiles.

    A profile names a partition, an account, modules to load and so on. Profiles are in
    hpcdist.yaml: the project's (in this folder or one above it, up to the root of the git
    repository), or else the user's (~/.config/hpcdist/hpcdist.yaml).
    """


@cluster.command
@click.argument("name", metavar="[NAME]", required=False)
@json_option
def show(*, name: str | None, as_json: bool) -> None:
    """Print the values of a profile, and where each comes from.

    Without NAME, show the profile that `hpcdist submit` would use, and name all of them.
    """
    from hpcdist.cluster.load import all_profiles, load_profile, shown_path, user_file

    loaded = load_profile(name)
    if as_json:
        print_json(loaded)
        return
    if names := ", ".join(all_profiles()[1]):
        chosen = f"cluster {loaded.name}" if loaded.name else "no profile is the default"
        note(chosen if name else f"{chosen}; there are {names}")
    else:
        note(
            f"there is no profile: no hpcdist.yaml here, above, or at {shown_path(user_file())}; "
            "`hpcdist cluster detect --write` makes one on a login node, `hpcdist cluster copy` "
            "lists those that come with hpcdist"
        )
    print_columns(("KEY", "VALUE", "FROM"), _rows(loaded))


def _rows(loaded: LoadedProfile) -> list[tuple[str, str, str]]:
    """Return a row per value; lists and sections are JSON. Sections of schedulers that the profile
    cannot mean are left out."""
    import msgspec

    rows = []
    for key, value in msgspec.to_builtins(loaded.profile).items():
        if key in SCHEDULERS and loaded.profile.scheduler not in {"auto", key}:
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        rows.append((key, "-" if text in {"null", "[]", "{}"} else text, loaded.origins[key]))
    return rows


_write_option = click.option(
    "--write", is_flag=True, help="Write ./hpcdist.yaml, which must not be there yet."
)


@cluster.command(cls=HostCommand)
@_write_option
@host_option
def detect(*, write: bool) -> None:
    """Print a first hpcdist.yaml, by what the scheduler reports.

    Every partition with GPUs, and the default one, gets a profile. Run it on a login node, or with
    --host from elsewhere.
    """
    from hpcdist.cluster.site import first_file
    from hpcdist.schedulers import detect_scheduler, load_scheduler

    try:
        found = load_scheduler(detect_scheduler())
    except SchedulerError as error:
        raise SchedulerError(error.message, hint="run it on a login node of the cluster") from None
    site = found.detect_site()
    text = first_file(site)
    _give(text, is_written=write)


@cluster.command
@click.argument("name", metavar="[NAME]", required=False)
@_write_option
def copy(*, name: str | None, write: bool) -> None:
    """Print an hpcdist.yaml that comes with hpcdist, or list all."""
    from hpcdist.cluster.load import shipped_file, shipped_files

    if name is not None:
        _give(shipped_file(name), is_written=write)
    elif write:
        raise click.UsageError(f"name the file to write: {', '.join(shipped_files())}")
    else:
        first_lines = {name: text.splitlines()[0] for name, text in shipped_files().items()}
        rows = [(name, line.removeprefix("#").strip()) for name, line in first_lines.items()]
        print_columns(("NAME", "FOR"), rows)


@cluster.command
@click.option("--forget", "forgotten", metavar="HOST", multiple=True, help="Take it again.")
@click.option(
    "--pin", "pinned", metavar="HOST", multiple=True, help="Leave it out until forgotten."
)
@json_option
def nodes(*, forgotten: Sequence[str], pinned: Sequence[str], as_json: bool) -> None:
    """List the nodes on which runs failed, and whether the next submission leaves them out.

    A node is left out (Slurm, LSF) that was lost, could start nothing, had a fault of a GPU, failed
    the preflight or was slower than all others in two runs within seven days; at most 5 % of a
    partition, one at least. Exceptions of the program do not count.
    """
    import time

    import msgspec

    from hpcdist.cluster.load import load_profile
    from hpcdist.runs import nodes as ledger

    for kind, hosts in (("forget", forgotten), ("pin", pinned)):
        for host in hosts:
            event = {"time_s": time.time(), "host": host, "kind": kind}
            try:
                ledger.write(msgspec.convert(event, ledger.NodeEvent))
            except msgspec.ValidationError:
                raise UserError(f"--{kind} {host}: that is no name of a node") from None
            except OSError as error:
                raise UserError(f"{ledger.ledger_file()}: {error.strerror}") from None
    shared = load_profile(None).profile.nodes_ledger
    try:
        events = ledger.read(ledger.ledgers(shared))
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}", hint="see nodes_ledger") from None
    counted = ledger.suspects(events, time.time())
    if as_json:
        print_json({"left_out": counted, "events": events})
        return
    rows = [
        (
            event.host,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(event.time_s)),
            "left out" if event.host in counted else "-",
            event.words,
        )
        for event in events
    ]
    if rows:
        print_columns(("NODE", "TIME", "NEXT TIME", "WHAT"), rows)
    else:
        say("nothing went wrong on any node")


def _give(text: str, *, is_written: bool) -> None:
    """Print a file, or write it to ./hpcdist.yaml."""
    path = Path("hpcdist.yaml")
    if not is_written:
        print(harmless(text), end="")
        return
    if os.path.lexists(path):
        raise UserError(
            f"{path} exists already, and was not changed",
            hint="without --write the profiles are printed, to copy from",
        )
    with writing(path, hint="go to a folder of your own"):
        files.write_whole(path, text)
    say(f"wrote {path}; read it, and correct what is wrong")
