"""`hpcdist setup`: install hpcdist at a host that a laptop reaches by ssh."""

from __future__ import annotations

import click

from hpcdist.base.errors import UserError
from hpcdist.cli.printing import say


@click.command
@click.argument("name", metavar="HOST")
@click.option("--python", metavar="FILE", help="Python on the host. [default: the first found]")
@click.option(
    "--load",
    metavar="LINE",
    multiple=True,
    help="Line of bash to run on the host before each start, such as 'module load python3/3.11'.",
)
@click.option("--venv", metavar="DIR", help="Folder of the virtual environment on the host.")
def setup(*, name: str, python: str | None, load: tuple[str, ...], venv: str | None) -> None:
    """Install hpcdist on HOST, or update it to the version of this machine: into a virtual
    environment in your home, with what it needs from the index that pip uses there.

    \b
    hpcdist setup login.hpc.dtu.dk --load "module load python3/3.11.9"
    hpcdist submit ddp --host login.hpc.dtu.dk --gpus 2
    """
    from hpcdist.cluster.host import parse_host
    from hpcdist.remote.install import install
    from hpcdist.runs.remote import remember_host

    for line in load:
        if not line.isprintable():
            raise UserError(f"--load is {line!r}, must be a line", hint="give --load several times")
    host = parse_host(name, origin="HOST")
    remember_host(host.name)
    say(f"{host.name}: {install(host, python=python, load=load, venv=venv)}")
