"""Write docs/job-keys.md from the structs and docstrings of hpcdist/job/spec.py.

python docs/generate_job_keys.py > docs/job-keys.md
"""

from __future__ import annotations

import inspect
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

A job file is YAML (1.2) with the keys below, in sections. Unknown keys are errors, and so are values of a
wrong type or out of range; the message names the file, the key and the value. You can change any key for
one run with `--set section.key=value`. The value is read as YAML (`--set data.root=null`,
`--set launch.port_range=[20000,20100]`). Flags (`--nodes`, `--gpus`, `--max-restarts`) and `--set` override
the job file; a flag and `--set` with different values for one key are an error.

This page is written by `python docs/generate_job_keys.py`.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    return _HEAD + "".join(_section(heading, name) for name, heading in _SECTIONS.items())


def table(keys: Sequence[DottedKey]) -> str:
    """Return the keys of a struct as a Markdown table."""
    rows = "".join(
        f"| `{key.path}` | section | | see below |\n"
        if key.value == "section"
        else f"| `{key.path}` | {key.value} | {key.default} | {key.meaning} |\n"
        for key in keys
    )
    return f"| key | value | default | meaning |\n|---|---|---|---|\n{rows}"


def _section(heading: str, struct: str) -> str:
    described = getattr(spec, struct)
    return f"\n## {heading}\n\n{inspect.getdoc(described)}\n\n{table(keys_of(described))}"


if __name__ == "__main__":
    print(page(), end="")
