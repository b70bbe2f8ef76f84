"""`hpcdist init`: a first script."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from hpcdist.base.errors import UserError
from hpcdist.base.files import shipped_folder
from hpcdist.cli.printing import writing

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SCRIPT = "ddp_digits.py"


@click.command
@click.argument("name", default="train")
def init(*, name: str) -> None:
    """Make a first script, ./NAME.py, which runs as it is, under torchrun too; nothing is
    overwritten.
    """
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"NAME is {name!r}, must be letters, digits, and . _ - within")
    path = Path(f"{name.removesuffix('.py')}.py")
    text = (shipped_folder("examples") / _SCRIPT).read_text(encoding="utf-8")
    text, what = text.replace(f"examples/{_SCRIPT}", str(path)), f"{path} --gpus 2"
    if path.exists():
        raise UserError(f"{path} exists already, and was not changed", hint="give another NAME")
    with writing(path, hint="go to a folder of your own"), path.open("x", encoding="utf-8") as file:
        file.write(text)
    print(path)
    for verb in (f"submit {what} --local", f"submit {what}", f"explain {what}"):
        print(f"  hpcdist {verb}", file=sys.stderr)
