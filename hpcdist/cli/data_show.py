"""`hpcdist data show`: the first batch of a training, to look at."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base.errors import UserError
from hpcdist.cli.data_sets import chosen_data, data_set_options, note_unmade
from hpcdist.cli.printing import note

if TYPE_CHECKING:
    from PIL.Image import Image

    from hpcdist.job.spec import Data

_MOST_SEED = 2**32 - 1


@click.command(short_help="Draw a batch as the model will see it.")
@data_set_options
@click.option(
    "--transform",
    metavar="T",
    help="As data.transform of a job: none, light, heavy, or a list of transforms in YAML.",
)
@click.option("--size", metavar="PIXELS", help="As data.size of a job.")
@click.option("--out", metavar="FILE", help="Write the picture here, such as batch.png.")
@click.option(
    "--inline/--no-inline",
    default=None,
    help="Show it in the terminal.  [default: without --out, if that can]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, _MOST_SEED),
    default=0,
    metavar="N",
    help="As train.seed of a job.",
)
@click.option(
    "--number",
    type=click.IntRange(1, 1024),
    default=16,
    show_default=True,
    metavar="N",
    help="How many images.",
)
def show(
    *,
    name: str,
    root: str | None,
    split: str | None,
    transform: str | None,
    size: str | None,
    out: str | None,
    inline: bool | None,
    seed: int,
    number: int,
) -> None:
    """Draw the first batch of a training: each image as it was read, and as the model sees it.

    They are the very images that a job with this seed begins with, changed as in its first epoch,
    before their values are normalised. Terminals that show pictures are kitty, Ghostty, WezTerm,
    iTerm2, and those with sixel.

    \b
    hpcdist data show faces --transform heavy --out batch.png
    hpcdist data show digits --transform '[{RandomRotation: {degrees: 20}}]' --out batch.png
    """
    protocol = _protocol(inline=inline, has_file=out is not None)
    file = None if out is None else _file(out)
    wanted = chosen_data(
        name, {"--root": root, "--split": split, "--transform": transform, "--size": size}
    )
    note_unmade(wanted)
    picture = _draw(wanted, seed=seed, number=number)
    if protocol is not None:
        from hpcdist.cli.pictures import encode

        sys.stdout.write(encode(picture, protocol))
    if file is not None:
        _save(picture, file)
        note(f"the picture is {file}")


def _protocol(*, inline: bool | None, has_file: bool) -> str | None:
    """How the terminal is sent a picture; None where it is not to be."""
    from hpcdist.cli.pictures import find_protocol

    if inline is False or (inline is None and has_file):
        if not has_file:
            raise UserError("--no-inline without --out", hint="write it to a file: --out batch.png")
        return None
    protocol = find_protocol(os.environ)
    if protocol is None:
        raise UserError(
            "stdout is no terminal that is known to show pictures",
            hint="write it to a file: --out batch.png",
        )
    return protocol


def _file(out: str) -> Path:
    """Where it is written; UserError where that cannot be, before any image is read."""
    from PIL import Image

    path = Path(out)
    ending = Image.registered_extensions().get(path.suffix.lower())
    if ending not in Image.SAVE:
        raise UserError(
            f"--out is {out!r}, whose ending is not that of a picture", hint="for example batch.png"
        )
    if path.is_dir() or not path.parent.is_dir():
        problem = "which is a folder" if path.is_dir() else f"but {path.parent} is no folder"
        raise UserError(
            f"--out is {out!r}, {problem}", hint="name a file in a folder that is there"
        )
    return path


def _draw(wanted: Data, *, seed: int, number: int) -> Image:
    from hpcdist.data.catalog import check_data, find_data_set
    from hpcdist.data.images.preview import draw_grid, load_preview

    if find_data_set(wanted).images is None:
        check_data(wanted)  # JobError where files are missing, before torchvision looks for them
    shown = load_preview(wanted, seed=seed, number=number)
    for sample in shown:
        if sample.problem:
            note(sample.problem)
    both = wanted.transform != "none"
    title = f"{wanted.name}, seed {seed}"
    if both:
        title = f"left as read, right as the model sees it: {title}, transform {_in_words(wanted)}"
    return draw_grid(shown, title=title, both=both)


def _in_words(wanted: Data) -> str:
    from hpcdist.job.check import show as as_text

    return wanted.transform if isinstance(wanted.transform, str) else as_text(wanted.transform)


def _save(picture: Image, path: Path) -> None:
    from PIL import Image

    from hpcdist.base.files import write_whole

    content = io.BytesIO()
    picture.save(content, Image.registered_extensions()[path.suffix.lower()])
    try:
        write_whole(path, content.getvalue())
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}", hint="name another with --out"
        ) from None
