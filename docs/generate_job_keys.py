"""Write docs/job-keys.md from the structs and docstrings of hpcdist/job/spec.py.

python docs/generate_job_keys.py > docs/job-keys.md
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from hpcdist.cluster.schedulers import scheduler_choices

PACKAGE = Path(__file__).parent.parent / "hpcdist"

_SECTIONS = {
    "JobSpec": "Every job",
    "Resources": "`resources`",
    "Launch": "`launch`",
    "Record": "`record`",
    "Container": "`container`",
    "TrainJob": "Jobs with `workload: train`",
    "LightningJob": "Jobs with `workload: lightning`",
    "TrainingJob": "Jobs with `workload: train` or `workload: lightning`",
    "Model": "`model`",
    "Data": "`data`",
    "Train": "`train`",
    "Checkpoint": "`checkpoint`",
    "ScriptJob": "Jobs with `workload: script`",
    "ModuleJob": "Jobs with `workload: module`, which also have `args`",
    "ProgramJob": "Jobs with `workload: program`, which also have `args`",
    "FunctionJob": "Jobs with `workload: function`",
    "CheckJob": "Jobs with `workload: check`",
    "AllreduceJob": "Jobs with `workload: allreduce`",
    "Allreduce": "`allreduce`",
    "InferenceJob": "Jobs with `workload: inference`, which also have `model` and `data`",
    "Inference": "`inference`",
    "DataloadJob": "Jobs with `workload: dataload`",
    "LoadedData": "`data` of jobs with `workload: dataload`",
    "TimedModel": "`model` of jobs with `workload: dataload`",
    "Dataload": "`dataload`",
}
"""Struct -> heading, in the order of the page."""

_MEANING_AS_IN = {"LoadedData": "Data", "TimedModel": "Model"}
"""Struct -> the struct with the meaning of the keys that have no docstring of their own."""

_TYPES = {
    "Count": "integer, 1 or more",
    "CountOrZero": "integer, 0 or more",
    "Positive": "number above 0",
    "PositiveOrZero": "number, 0 or more",
    "str": "text",
    "bool": "true or false",
    "SchedulerChoice": ", ".join(scheduler_choices()),
    "dict[str, Any]": "mapping",
    "dict[str, str]": "mapping of names to texts",
    "list[str]": "list of texts",
    "tuple[Port, Port]": "[first, last], 1024 to 65535",
    "tuple[Count, Count, Count]": "list of 3 integers, 1 or more",
    "Literal['auto'] | bool": "auto, true or false",
    "str | tuple[str | dict[str, Any], ...]": "text, or a list of texts and mappings",
    "str | tuple[str | dict[str, Any] | tuple[str | dict[str, Any], ...], ...]": "text, or a list "
    "of texts, mappings and such lists",
    "Literal['reduce-overhead', 'max-autotune'] | bool": "true, false, reduce-overhead or "
    "max-autotune",
}

_HEAD = """# Keys of a job file

A job file is YAML (1.2) with the keys below, in sections. Unknown keys are errors, and so are values of a
wrong type or out of range; the message names the file, the key and the value. You can change any key for
one run with `--set section.key=value`. The value is read as YAML (`--set data.root=null`,
`--set launch.port_range=[20000,20100]`). Flags (`--nodes`, `--gpus`, `--max-restarts`) and `--set` override
the job file; a flag and `--set` with different values for one key are an error.

This page is written by `python docs/generate_job_keys.py`.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    found = structs(PACKAGE / "job" / "spec.py")
    for name, other in _MEANING_AS_IN.items():
        _add_meanings(found[name], found[other])
    return _HEAD + "".join(_section(heading, found[name]) for name, heading in _SECTIONS.items())


def _add_meanings(struct: ast.ClassDef, other: ast.ClassDef) -> None:
    """Give each key without a docstring the docstring of the same key in another struct."""
    meanings = {
        key: following
        for key, following in _keys(other)
        if following is not None and _docstring(following)
    }
    for key, following in _keys(struct):
        if not _docstring(following):
            place = next(
                number
                for number, field in enumerate(struct.body, start=1)
                if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == key
            )
            struct.body.insert(place, meanings[key])


def _keys(struct: ast.ClassDef) -> list[tuple[str, ast.stmt | None]]:
    """Return each key with the statement below it."""
    return [
        (ast.unparse(field.target), following)
        for field, following in zip(struct.body, [*struct.body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign)
    ]


def structs(module: Path) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by name, as syntax trees."""
    body = ast.parse(module.read_text()).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def table(struct: ast.ClassDef) -> str:
    """Return the keys of a struct as a Markdown table."""
    rows = "".join(_rows(struct))
    return f"| key | value | default | meaning |\n|---|---|---|---|\n{rows}"


def _section(heading: str, struct: ast.ClassDef) -> str:
    summary = (ast.get_docstring(struct) or "").strip()
    return f"\n## {heading}\n\n{summary}\n\n{table(struct)}"


def _rows(struct: ast.ClassDef) -> list[str]:
    rows: list[str] = []
    for field, following in zip(struct.body, [*struct.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign):
            continue
        assert isinstance(field.target, ast.Name)
        default = ast.unparse(field.value) if field.value else "required"
        meaning = _docstring(following)
        if default.endswith("()"):
            rows.append(f"| `{field.target.id}` | section | | see below |\n")
            continue
        kind = _type(ast.unparse(field.annotation))
        rows.append(f"| `{field.target.id}` | {kind} | {_default(default)} | {meaning} |\n")
    return rows


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _default(text: str) -> str:
    names = {
        "None": "unset",
        "True": "true",
        "False": "false",
        "''": "none",
        "{}": "none",
        "[]": "none",
    }
    if text.startswith(("(", "tuple(")):  # a tuple: lists in YAML
        values = eval(text, {"range": range, "tuple": tuple})  # noqa: S307 - from our own source
        return f"[{', '.join(map(str, values))}]"
    return names.get(text, text.strip("'"))


def _type(annotation: str) -> str:
    optional = annotation.endswith(" | None")
    base = annotation.removesuffix(" | None")
    if base in _TYPES:
        text = _TYPES[base]
    elif base.startswith("OneOrSeveral["):
        text = f"{_type(base.removeprefix('OneOrSeveral[').removesuffix(']'))}; or a list"
    elif base.startswith("tuple[") and base.endswith(", ...]"):
        text = f"list, each {_type(base.removeprefix('tuple[').removesuffix(', ...]'))}"
    elif base.startswith("Literal["):
        text = ", ".join(re.findall(r"'([^']*)'", base))
    elif match := re.fullmatch(r"Annotated\[(int|float), Meta\((.*)\)\]", base):
        text = f"{'integer' if match[1] == 'int' else 'number'}, {_bounds(match[2])}"
    else:
        text = base
    return text + (" or null" if optional else "")


def _bounds(meta: str) -> str:
    words = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}
    parts = [part.split("=") for part in meta.replace(" ", "").split(",")]
    shown = [(name, str(eval(value))) for name, value in parts]  # noqa: S307 - our own source
    return " ".join(words[name].format(value) for name, value in shown)


if __name__ == "__main__":
    print(page(), end="")
