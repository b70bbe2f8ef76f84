"""Write docs/job-keys.md from the structs and docstrings of hpcdist/job/spec.py.

python docs/generate_job_keys.py > docs/job-keys.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from hpcdist.job import spec
from hpcdist.job.keys import DottedKey, keys_of

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
    "Dataload": "`dataload`",
}
"""Struct -> heading, in the order of the page."""

_HEAD = """# Keys of a job file

A job file is YAML (1.2) with the keys below, in sections. Unknown keys and values that do not fit are errors, which name the
file, the key and the value. Flags (`--nodes`, `--gpus`, `--max-restarts`) and `--set section.key=value` override the job file for
one run; a flag and `--set` with different values for one key are an error. The value is read as YAML: `--set data.root=null`,
`--set launch.port_range=[20000,20100]`. A key whose default is "unset" also takes null.

This page is written by `python docs/generate_job_keys.py`.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    return _HEAD + "".join(_section(heading, name) for name, heading in _SECTIONS.items())


def table(keys: Sequence[DottedKey]) -> str:
    """Return the keys of a struct as a Markdown table, below the names of its sections."""
    sections = [f"`{key.path}`" for key in keys if key.value == "section"]
    rows = [
        f"| `{key.path}` | {_value(key)} | {key.default} | {key.meaning} |\n"
        for key in keys
        if key.value != "section" and key.path != "workload"
    ]
    if rows:
        rows.insert(0, "| key | value | default | meaning |\n|---|---|---|---|\n")
    named = f"Sections: {', '.join(sections)}.\n" if sections else ""
    return "\n".join(part for part in (named, "".join(rows)) if part)


_SHORTER = (
    (r"a whole number, (\d+) or more", r"integer ≥ \1"),
    (r"a whole number from (\d+) to (\d+)", r"integer \1 to \2"),
    (r"a finite number, more than (\d+)", r"number > \1"),
    (r"a finite number, (\d+) or more", r"number ≥ \1"),
    (r"a list, each value ", "list of "),
    (r"a section with keys", "mapping"),
    (r"^[\w-]+(?: or [\w-]+)+$", lambda choices: choices[0].replace(" or ", ", ")),
)
"""Words of an error message -> words of the page."""


def _value(key: DottedKey) -> str:
    words = key.value.removesuffix(" or null") if key.default == "unset" else key.value
    for pattern, shorter in _SHORTER:
        words = re.sub(pattern, shorter, words)
    return words


def _section(heading: str, struct: str) -> str:
    described = getattr(spec, struct)
    return f"\n## {heading}\n\n{inspect.getdoc(described)}\n\n{table(keys_of(described))}"


if __name__ == "__main__":
    print(page(), end="")
