"""Rendering of the scripts that a scheduler executes: templates and values in, text out."""

from __future__ import annotations

import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcdist.base.files import shipped_folder

if TYPE_CHECKING:
    import jinja2


def render(template: str, **values: Any) -> str:
    """Fill a template of templates/; a value that is missing is an error."""
    return _environment().get_template(template).render(**values)


@cache  # a sweep renders the same template for every point
def _environment() -> jinja2.Environment:
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
    return environment


def comment(text: str) -> str:
    """Text that may stand behind a # in a script: one line, nothing that ends or escapes it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
