"""`hpcdist init`: a first script or job file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from hpcdist.base.errors import UserError
from hpcdist.base.files import shipped_folder
from hpcdist.cli.options import Choice
from hpcdist.cli.printing import writing

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SCRIPT = "ddp_digits.py"
_JOB = """\
# `hpcdist explain train` lists the keys of a section, `hpcdist explain train.lr` says more.
description: {name}, made by hpcdist init
workload: train
strategy: ddp
resources: {{nodes: 1, gpus: {gpus}}}
model: {{name: fashion_cnn}}
data: {{name: digits}}
train: {{epochs: 10, batch_size: 32, lr: 0.002}}
checkpoint: {{every_epochs: 5}}
"""


@click.command
@click.argument("name", default="train")
@click.option("--kind", type=Choice(["script", "job"]), default="script", help="What to make.")
@click.option("--gpus", type=click.IntRange(1, 1024), default=2, help="GPUs per node.")
def init(*, name: str, kind: str, gpus: int) -> None:
    """Make a first script (./NAME.py), which runs under torchrun too, or a job file
    (./jobs/NAME.yaml) for hpcdist's trainer. Both run as they are; nothing is overwritten.
    """
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"NAME is {name!r}, must be letters, digits, and . _ - within")
    if kind == "script":
        path = Path(f"{name.removesuffix('.py')}.py")
        text = (shipped_folder("examples") / _SCRIPT).read_text(encoding="utf-8")
        text, what = text.replace(f"examples/{_SCRIPT}", str(path)), f"{path} --gpus {gpus}"
    else:
        path, what = Path("jobs", f"{name}.yaml"), name
        text = _JOB.format(name=name, gpus=gpus)
    if path.exists():
        raise UserError(f"{path} exists already, and was not changed", hint="give another NAME")
    with writing(path, hint="go to a folder of your own"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    print(path)
    for verb in (f"submit {what} --local", f"submit {what}", f"explain {what}"):
        print(f"  hpcdist {verb}", file=sys.stderr)
