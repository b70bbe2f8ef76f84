"""`hpcdist data`: make, check and look at data sets before a job uses them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, UserError
from hpcdist.base.progress import track
from hpcdist.base.text import one_line
from hpcdist.cli.options import json_option, with_options
from hpcdist.cli.printing import note, print_json, writing

if TYPE_CHECKING:
    from hpcdist.job.spec import Data


data_set_options = with_options(
    click.argument("name"),
    click.option("--root", metavar="DIR", help="Its folder or archive, as in data.root of a job."),
)


def chosen_data(name: str, flags: Mapping[str, str | None]) -> Data:
    """Return the section `data` of a job with these flags; --root is data.root.

    JobError for what no job takes. Relative folders are those of the shell.
    """
    from hpcdist.job.load import Flag, load_values, parse_flag
    from hpcdist.job.spec import TrainJob

    given = {"data.name": Flag(name="NAME", value=name)}
    for flag, text in flags.items():
        if text is not None:
            given[f"data.{flag.removeprefix('--')}"] = parse_flag(flag, text)
    values = {"name": "data", "workload": "train"}
    job = load_values(values, source="hpcdist data", flags=given).job
    assert isinstance(job, TrainJob)
    return job.data


@click.group
def data() -> None:
    """Make, check and show data sets.

    \b
    hpcdist data check faces --root ~/lfw     finds files that are not images
    hpcdist data show faces --transform heavy --out batch.png
    hpcdist data faces --make made --people 400 --images 2000

    A NAME is what data.name of a job may be: digits, mnist, fashion_mnist, faces, image_folder.
    Without --root, faces are photographs made from two that are bundled.
    """


@data.command(short_help="Make photographs in the layout of LFW.")
@click.option("--make", "folder", metavar="DIR", required=True, help="Make them in a new folder.")
@click.option("--people", type=click.IntRange(1, 100_000), default=400, show_default=True)
@click.option("--images", type=click.IntRange(2, 10_000_000), default=2000, show_default=True)
def faces(*, folder: str, people: int, images: int) -> None:
    """Make photographs in the layout of LFW (Labeled Faces in the Wild), and print their folder.

    They are crops of two photographs, mirrored and in other colours: 250 x 250 JPEG of the size of
    LFW's files, a few people with many images and many with one or two. The same numbers
    make the same files.
    """
    from hpcdist.data.images.faces import Plan, make_faces, make_whole

    if images < people:
        raise UserError(
            f"--images is {images:,}, for {people:,} people", hint="each has one image or more"
        )
    place, plan = Path(folder), Plan(people=people, images=images)
    with writing(place, hint="name a folder that you may write"):
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise UserError(
                f"{place} exists already, and is not an empty folder", hint="name another"
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        make_whole(place.absolute(), lambda aside: make_faces(aside, plan))
    print(folder)


@data.command(short_help="List the files of a data set that are not images.")
@data_set_options
@json_option
def check(*, name: str, root: str | None, as_json: bool) -> int:
    """Read every file of a data set, and list those that are not images.

    The exit code is 1 if there are any, and 2 if the data set is missing or too small.
    """
    from hpcdist.data.catalog import check_data, find_images

    wanted = chosen_data(name, {"--root": root})
    parts = find_images(wanted)
    if parts is None:  # held in memory, and read as a whole
        sizes = check_data(wanted)
        if as_json:
            print_json({"name": name, "train": sizes.train, "test": sizes.test, "problems": {}})
        else:
            print(f"{name}: {sizes.train:,} images for training, {sizes.test:,} for testing")
        return EXIT_DONE
    from hpcdist.data.images.decoding import check_files

    advances = track(range(len(parts.train) + len(parts.test)), "reading")
    problems = check_files(parts, lambda: next(advances, None))
    train, test, classes = len(parts.train), len(parts.test), len(parts.train.classes)
    if as_json:
        counts = {"name": name, "root": str(parts.train.root), "classes": classes}
        print_json({**counts, "train": train, "test": test, "problems": problems})
    else:
        for path, problem in problems.items():
            print(f"{one_line(path)} {one_line(problem)}")
        print(
            f"{name}: {train:,} images for training, {test:,} for testing, of {classes:,} classes"
        )
    if problems:
        what = (
            "1 file is not an image"
            if len(problems) == 1
            else f"{len(problems):,} files are not images"
        )
        note(f"{what}; jobs end at the first one that they read")
    return EXIT_FAILED if problems else EXIT_DONE


@data.command(short_help="Draw a batch as the model will see it.")
@data_set_options
@click.option(
    "--transform",
    metavar="T",
    help="As in data.transform of a job: none, light, heavy, or a list of transforms in YAML.",
)
@click.option("--out", metavar="FILE", help="Write the picture here, as PNG. [default: NAME.png]")
def show(*, name: str, root: str | None, transform: str | None, out: str | None) -> None:
    """Draw the first batch of a training: each image as it was read, and as the model sees it.

    These are the 16 images that a job with train.seed=0 begins with, transformed as in its first
    epoch, before their values are normalised.

    \b
    hpcdist data show faces --transform heavy --out batch.png
    hpcdist data show faces --transform '[{RandomRotation: {degrees: 20}}]' \\
        --out batch.png
    """
    from hpcdist.base.files import write_whole
    from hpcdist.data.catalog import check_data
    from hpcdist.data.images.preview import draw_grid, load_preview
    from hpcdist.job.check import show as in_words

    path = Path(out or f"{name}.png")
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise UserError(
            f"--out {path}: must be a .png in a folder that is there", hint="such as batch.png"
        )
    wanted = chosen_data(name, {"--root": root, "--transform": transform})
    if path.exists():
        raise UserError(f"{path} is already there", hint="name another with --out")
    check_data(wanted)  # JobError where files are missing
    samples = load_preview(wanted)
    title, of = wanted.name, wanted.transform
    if is_changed := of != "none":
        words = of if isinstance(of, str) else in_words(of)
        title = f"left as read, right as the model sees it: {title}, transform {words}"
    content = io.BytesIO()
    draw_grid(samples, title=title, both=is_changed).save(content, "PNG")
    with writing(path, hint="name another with --out"):
        write_whole(path, content.getvalue())
    note(f"the picture is {path}")
