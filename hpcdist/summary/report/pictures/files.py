"""The pictures as files: each as PNG and as SVG."""

from __future__ import annotations

from pathlib import Path

from hpcdist.base import files
from hpcdist.base.plotting import drawing, save
from hpcdist.summary.report.outputs import cannot_write_output
from hpcdist.summary.report.pictures.catalogue import find_pictures
from hpcdist.summary.report.report import make_sections
from hpcdist.summary.values import Summary

FORMS = ("png", "svg")


def write_pictures(summary: Summary, folder: Path) -> list[Path]:
    """Draw all pictures into a folder, which is made; their paths. Raises UserError where it
    cannot be written."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for _, picture in find_pictures(make_sections(summary)):
            with drawing():
                figure = picture.draw()
                for form in FORMS:
                    path = folder / f"{picture.name}.{form}"
                    files.write_whole(path, save(figure, form), mode=files.USUAL_FILE)
                    written.append(path)
    except OSError as error:
        raise cannot_write_output(folder, error, what="pictures") from None
    return written
