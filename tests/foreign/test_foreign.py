"""Programs that know nothing of hpcdist leave what they leave under torchrun, run side by side.

The exit code, each rank's lines and every file that the program wrote are compared: `facts-*.json`
key by key, what was drawn at random (`random-*.json`) among the ranks of a run, and all others byte
for byte.
"""

import fnmatch
import gzip
import json
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import Zygote

from hpcdist.runs.run import Run

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 120.0
_END_S = 20.0
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A program."""

    name: str
    command: tuple[str, ...]
    """The program and its arguments, as both commands are told them."""
    how: tuple[str, ...] = ()
    """-m for a module, --no-python for a command."""
    num_ranks: int = 2
    exit_code: int = 0
    """Of torchrun: what the row is about would be lost if torchrun failed otherwise."""
    has_own_modules: bool = False
    """Modules of its own have the names of modules that hpcdist has imported."""
    ignores: tuple[str, ...] = ()
    """Patterns of files that differ from run to run."""
    differs: Mapping[str, str] = field(default_factory=dict)
    """By pattern of a key of facts-*.json: why it may differ."""
    packages: tuple[str, ...] = ()
    """Of others, which must be there; such rows are left to `make foreign`, and their lines are not
    compared."""


_OWN = "hpcdist, submitit and the schedulers add variables; the store has an address of its own"
_OWN_VARIABLES = (
    *("HPCDIST_*", "SUBMITIT_*", "MASTER_*", "*_SOCKET_IFNAME", "NODE_RANK", "OLDPWD", "_"),
    *("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_SIGNALS_TO_HANDLE"),
    *("TORCH_FR_BUFFER_SIZE", "WANDB_RUN_*", "WANDB_RESUME", "MLFLOW_RUN_CONTEXT"),
)
_PORTRAIT = {
    "dispositions.SIGUSR2": "it says that the run is about to end, and does not end the program",
    "limits.RLIMIT_*OFILE": "a rank has connections to all others",
    **{f"environment.{name}": _OWN for name in _OWN_VARIABLES},
}
_PORTRAIT_OF_A_COMMAND = _PORTRAIT | {
    "dispositions.SIGQUIT": "nobody can ask a program for the stacks of its threads",
}
_ENDS_WELL = (
    *("os._exit(0)", "exec", "exec of a command", "sys.exit(256)", "exit handler raises"),
    *("thread raises", "thread leaves", "no stdout", "no streams"),
    *("descriptors closed", "descriptors taken"),
)
ROWS = [
    Row(name="module", command=("outer.part.program",), how=("-m",), has_own_modules=True),
    Row(
        name="command",
        command=("python", "portrait.py", "--lr", "0.1", "", "two words", "--"),
        how=("--no-python",),
        differs=_PORTRAIT_OF_A_COMMAND,
    ),
    Row(name="script", command=("portrait.py",), differs=_PORTRAIT),
    Row(name="ends well", command=("ends.py", *_ENDS_WELL), num_ranks=len(_ENDS_WELL)),
    Row(name="raises", command=("ends.py", "waits", "raise"), exit_code=1),
    Row(name="writes", command=("writes.py",)),
    Row(name="children", command=("children.py",)),
    Row(name="torch and random numbers", command=("torch_portrait.py", "random_numbers.py")),
    Row(
        name="accelerate",
        command=("accelerate.test_utils.scripts.test_sync",),
        how=("-m",),
        packages=("accelerate",),
    ),
    Row(
        name="transformers",
        command=("transformers_trainer.py",),
        packages=("transformers", "accelerate"),
        ignores=("trained/*/training_args.bin", "trained/*/trainer_state.json", "trained/*.bin"),
    ),
]


@pytest.fixture(scope="session")
def launchers():
    """The zygote that starts both commands."""
    with Zygote("torch.distributed.run", "hpcdist.cli.main", "hpcdist.cli.submit") as process:
        yield process


def _parameter(row):
    marks = [pytest.mark.foreign, pytest.mark.timeout(3 * LIMIT_S)] if row.packages else []
    return pytest.param(row, id=row.name, marks=marks)


@pytest.mark.parametrize("row", [*map(_parameter, ROWS)])
def test_a_program_leaves_what_it_leaves_under_torchrun(row, launchers, tmp_path, missing):
    lacking = [package for package in row.packages if find_spec(package) is None]
    if lacking:
        missing(f"{', '.join(lacking)} not installed: make foreign does it")
    torchrun, hpcdist = _run_both(launchers, row, tmp_path)
    found = [*_differences(row, torchrun, hpcdist)]
    assert torchrun.exit_code == row.exit_code, torchrun.told + "".join(torchrun.output)
    said = ["", *found, "== torchrun", torchrun.told[-3000:], "== hpcdist", hpcdist.told]
    assert not found, "\n".join(said + [output[-3000:] for output in hpcdist.output])


# Running.


@dataclass(frozen=True)
class Outcome:
    """What is left of one run."""

    exit_code: int | None
    """Of the command; None: it had to be ended after the limit."""
    folder: Path
    """Where it ran: the program and what it wrote."""
    given: frozenset[Path]
    """The files that were there before."""
    output: list[str]
    """What each rank wrote to stdout and stderr; torchrun keeps them apart, and so the order of
    lines says nothing."""
    told: str
    """What the command itself said."""


def _run_both(zygote, row, place):
    """What both make of a row, run side by side in folders of their own; torchrun's first."""
    deadline_s = time.monotonic() + LIMIT_S * (2 if row.packages else 1)
    bin_folder = str(Path(sys.executable).parent)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    environment["PATH"] = f"{bin_folder}{os.pathsep}{environment['PATH']}"
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    theirs, ours = place / "torchrun", place / "hpcdist"
    number, (program, *arguments) = str(row.num_ranks), row.command
    all_arguments = {
        theirs: [
            *("--standalone", "--nproc-per-node", number, "--redirects", "3", "--log-dir"),
            *(str(theirs / "logs"), *row.how, program, *arguments),
        ],
        ours: [
            *("submit", *row.how, program, "--gpus", number, "--local", "--no-requeue", "--set"),
            *("launch.device=cpu", "--runs", str(ours / "runs"), "--", *arguments),
        ],
    }
    started = []
    for at, options in all_arguments.items():
        shutil.copytree(PROGRAMS, at / "work")
        for name in ("msgspec", "queue", "secrets") if row.has_own_modules else ():
            (at / "work" / f"{name}.py").write_text("IS_OWN = True\n")
        given = frozenset((at / "work").rglob("*"))
        with (at / "told").open("ab") as told:
            child = zygote.call(
                *(at.name, options, bin_folder),
                outputs=[told.fileno()] * 2,
                argv=(at.name, *options),
                cwd=at / "work",
                environment=environment | {"PWD": str(at / "work")},
            )
        started.append((at, given, child))
    outcomes = []
    for at, given, child in started:
        code = _exit_code(child, deadline_s)
        runs = [Run(spec.parent) for spec in (at / "runs").glob("*/spec.json")]
        output = []
        for rank in range(row.num_ranks):
            logs = sorted((at / "logs").glob(f"*/attempt_0/{rank}/std*.log"))
            logs += [run.log_file(rank, 0) for run in runs]
            output.append("".join(_text(log) for log in logs if log.exists()))
        outcomes.append(Outcome(code, at / "work", given, output, _text(at / "told")))
    return outcomes


def _exit_code(child, deadline_s):
    """Its exit code; None, and it is ended, where there is none in time."""
    code = child.wait(deadline_s - time.monotonic())
    if code is None:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            os.kill(child.pid(), signum)
            if child.wait(_END_S) is not None:
                break
    return code


def _text(path):
    return path.read_text(errors="replace")


# Comparing.


def _differences(row, torchrun, hpcdist):
    """Sentences, each of which begins with what differs; none where both are equal."""
    if torchrun.exit_code != hpcdist.exit_code:
        yield f"exit code: torchrun {torchrun.exit_code}, hpcdist {hpcdist.exit_code}"
    theirs, ours = (_files(row, outcome) for outcome in (torchrun, hpcdist))
    for name in sorted(theirs.keys() ^ ours.keys()):
        yield f"file {name}: only {'torchrun' if name in theirs else 'hpcdist'}'s run wrote it"
    drawn = [json.loads(ours[name].read_text()) for name in ours if name.startswith("random-")]
    for name in drawn[0] if drawn else ():
        if len({json.dumps(one[name]) for one in drawn}) < len(drawn):
            yield f"random numbers of {name}: the same on several ranks"
    for name in sorted(theirs.keys() & ours.keys()):
        if name.startswith("facts-"):
            yield from _of_facts(row, name, torchrun.folder, hpcdist.folder)
        elif not name.startswith("random-"):
            contents = [each[name].read_bytes() for each in (theirs, ours)]
            if name.endswith(".gz"):
                contents = [*map(gzip.decompress, contents)]  # its header has the time
            if contents[0] != contents[1]:
                yield f"file {name}: torchrun {contents[0][:400]}, hpcdist {contents[1][:400]}"
    for rank, texts in enumerate(zip(torchrun.output, hpcdist.output, strict=True)):
        one, other = (
            Counter(_ADDRESS.sub("0x", text.replace(str(outcome.folder), "FOLDER")).splitlines())
            for text, outcome in zip(texts, (torchrun, hpcdist), strict=True)
        )
        if one != other and not row.packages:
            only = [*(one - other).elements()], [*(other - one).elements()]
            yield f"output of rank {rank}: only under torchrun {only[0]}, under hpcdist {only[1]}"


def _files(row, outcome):
    """Path by name of the files that a run wrote."""
    found = {}
    for path in {*outcome.folder.rglob("*")} - outcome.given:
        name = str(path.relative_to(outcome.folder))
        if path.is_file() and "__pycache__" not in name and not _matches(name, row.ignores):
            found[name] = path
    return found


def _of_facts(row, name, *folders):
    """What differs but for the names of the runs' own folders."""
    one, other = (
        dict(_flat(json.loads((at / name).read_text().replace(str(at), "FOLDER"))))
        for at in folders
    )
    for key in sorted(one.keys() | other.keys()):
        values = [each.get(key, "(missing)") for each in (one, other)]
        if values[0] != values[1] and not _matches(key, row.differs):
            yield f"{name}, {key}: torchrun {values[0]!r:.400}, hpcdist {values[1]!r:.400}"


def _flat(value, prefix=""):
    """Pairs of a dotted name and a value, of objects within objects."""
    if not isinstance(value, dict) or not value:
        yield prefix, value
        return
    for key, inner in value.items():
        yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))


def _matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
