"""docs/architecture.md is true: the rooms that it names are there, and imports point downwards."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROOMS = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
"""From the top down."""


@pytest.fixture(scope="module")
def nodes():
    """The nodes of each module's syntax tree, by its dotted name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): [
            *ast.walk(ast.parse(path.read_text()))
        ]
        for path in (ROOT / "hpcdist").rglob("*.py")
    }


def imported(nodes, names):
    """Modules of hpcdist that a module imports anywhere, in functions too."""
    left_out = {
        id(statement)
        for one in nodes
        if isinstance(one, ast.If) and "TYPE_CHECKING" in ast.dump(one.test)
        for statement in one.body
    }
    found = set()
    for node in nodes:
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & names
            is_package_needed = len(submodules) < len(node.names)
            found |= submodules | ({node.module} if is_package_needed else set())
    return found & names


@pytest.fixture(scope="module")
def graph(nodes):
    """What each module imports."""
    return {name: imported(own, nodes.keys()) - {name} for name, own in nodes.items()}


def room(name):
    return name.split(".")[1] if "." in name else ""


def test_the_page_names_every_room_and_no_other():
    entries = (ROOT / "hpcdist").iterdir()
    there = {path.stem for path in entries if path.is_dir() or path.suffix == ".py"}
    assert set(ROOMS) == there - {"__init__", "__main__", "__pycache__"}


def test_files_that_the_page_names_are_there():
    named = re.findall(r"`([\w/]+/(?:[\w.]+\.(?:py|yaml|j2))?)`", PAGE)
    folders = [ROOT, ROOT / "hpcdist", ROOT / "docs", ROOT / "hpcdist" / "summary"]
    missing = [name for name in named if not any((folder / name).exists() for folder in folders)]
    assert len(named) > 20
    assert not missing


def test_imports_point_downwards_in_the_order_of_the_page(graph):
    upwards = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if room(name) in ROOMS
        and room(other) in ROOMS
        and ROOMS.index(room(other)) < ROOMS.index(room(name))
    ]
    assert not upwards


def test_the_longest_way_down_passes_at_most_eleven_rooms(graph):
    below = {name: set() for name in ROOMS}
    for name, others in graph.items():
        below.get(room(name), set()).update(set(map(room, others)) & below.keys() - {room(name)})
    floors = {}
    for name in reversed(ROOMS):
        floors[name] = 1 + max((floors[other] for other in below[name]), default=0)
    assert max(floors.values()) <= 11, sorted(floors.items(), key=lambda item: item[1])


def test_no_module_imports_itself_by_way_of_others(graph):
    waiting = {name: set(others) for name, others in graph.items()}
    while leaves := {name for name, others in waiting.items() if not others}:
        waiting = {name: others - leaves for name, others in waiting.items() if name not in leaves}
    assert not waiting


# Schedulers: who does not stand in a scheduler's folder asks the protocol.

OF_ONE_SCHEDULER = re.compile(
    r"slurm|lsf|pbs|azure|pyxis|srun|sbatch|scancel|squeue|salloc|bsub|bjobs|bkill|brun|qsub|qstat"
    r"|(?<![a-z_])(?:lsb|ls)_",
    re.IGNORECASE,
)
NAMES_SCHEDULERS = {
    "agent.launcher_end": "reads srun's words, which end agents that it had started",
    "base.secrets": "names of variables that are no secrets, and of keys that are",
    "cli.main": "says in its help what there is",
    "cli.options": "says in its help what there is",
    "cli.submit": "says in its help what there is",
    "cluster.profile": "the keys of hpcdist.yaml, each with the sites that it is for",
    "cluster.schedulers": "the table",
    "job.spec": "the key container.runtime",
    "machine.containers": "pyxis, a runtime that is a plugin of srun's",
    "schedulers.notes": "srun writes no notes: its words in the job's log are read",
}
"""Module -> why it names one all the same."""


def names_in(nodes):
    """Return the names in a module's code, without comments and docstrings."""
    texts = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in nodes:
        if id(node) not in texts:
            named = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
            yield from filter(OF_ONE_SCHEDULER.search, named)


def test_only_the_folder_of_a_scheduler_names_it(nodes):
    found = {
        name.removeprefix("hpcdist."): named
        for name, own in nodes.items()
        if not re.match(r"hpcdist\.schedulers\.(?:slurm|lsf|pbs|azure)\b", name)
        and (named := sorted(set(names_in(own))))
    }
    assert {n: named for n, named in found.items() if n not in NAMES_SCHEDULERS} == {}
    assert NAMES_SCHEDULERS.keys() <= found.keys(), "the list names a module that names none"
