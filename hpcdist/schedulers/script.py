"""Rendering of the scripts that a scheduler executes: templates and values in, text out."""

from __future__ import annotations

import shlex
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcdist.base.files import shipped_folder
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.base import Target

if TYPE_CHECKING:
    import jinja2


def render(
    template: str, job: JobSpec, target: Target, cluster: ClusterProfile, **values: Any
) -> str:
    """Fill a template of templates/; a value that is missing is an error.

    `values` are those that are the scheduler's own.
    """
    # One line, and nothing that ends or escapes a comment.
    name = "".join(c if c.isprintable() else " " for c in job.name)
    return _template(template).render(
        job_comment=" ".join(name.split()),
        num_nodes=job.resources.nodes,
        cwd=target.cwd,
        setup=cluster.setup,
        settings=cluster.environment | target.environment,
        python=cluster.python or sys.executable,
        submitit_folder=str(target.submitit_folder),
        **values,
    )


@cache  # a sweep renders the same template for every point
def _template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(shipped_folder("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - the text is bash: values are quoted by the filter `quote`
    )
    environment.filters["quote"] = shlex.quote
    return environment.get_template(name)
