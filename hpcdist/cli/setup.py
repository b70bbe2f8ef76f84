"""`hpcdist setup`: install hpcdist at a host that a laptop reaches by ssh."""

from __future__ import annotations

from pathlib import Path

import click

from hpcdist.base.errors import UserError
from hpcdist.cli.printing import say


@click.command
@click.argument("name", metavar="HOST")
@click.option(
    "--python", metavar="FILE", help="Python on the host. [default: the newest that is found there]"
)
@click.option(
    "--load",
    metavar="LINE",
    multiple=True,
    help=("Line of bash to run on the host before each start, such as 'module load python3/3.11'."),
)
@click.option(
    "--venv",
    metavar="DIR",
    help="Folder of the virtual environment on the host. [default: in your home]",
)
@click.option(
    "--system-site-packages",
    "sees_site_packages",
    is_flag=True,
    help="Also use the packages of that Python, such as its torch.",
)
@click.option(
    "--wheels",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Install from the wheels in this local folder, without a package index.",
)
def setup(
    *,
    name: str,
    python: str | None,
    load: tuple[str, ...],
    venv: str | None,
    sees_site_packages: bool,
    wheels: Path | None,
) -> None:
    """Install hpcdist on HOST, or update it to the version of this machine.

    It is installed into a virtual environment, with its dependencies from the package index that
    pip uses on the host.

    \b
    hpcdist setup login.hpc.dtu.dk --load "module load python3/3.11.9"
    hpcdist submit ddp --host login.hpc.dtu.dk --gpus 2
    """
    from hpcdist.cluster.host import parse_host
    from hpcdist.remote.install import Wishes, install
    from hpcdist.runs.remote import remember_host

    for line in load:
        if not line.isprintable():
            raise UserError(f"--load is {line!r}, must be a line", hint="give --load several times")
    wishes = Wishes(
        python=python, load=load, venv=venv, wheels=wheels, sees_site_packages=sees_site_packages
    )
    host = parse_host(name, origin="HOST")
    remember_host(host.name)
    say(f"{host.name}: {install(host, wishes)}")
