"""The files by which LFW is split into training and test images, in the order they are looked for.

    peopleDevTrain.txt, peopleDevTest.txt    a person per line, with all images: name, how many
    pairsDevTrain.txt, pairsDevTest.txt      only the images of the pairs: name, number, number;
                                             or name, number, name, number
    pairs.txt                                ten sets of such pairs; the last one is for testing

The first line of each says how many there are. Nobody is in both parts: the files are for telling
whether two images show the same person, not for putting a name to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from hpcdist.base.errors import JobError
from hpcdist.data.images.files import ImageFiles, ImageParts
from hpcdist.data.images.listing import Found, unreadable
from hpcdist.data.images.splits import make_files

_TEN_SETS = "pairs.txt"
_HINT = "set data.split to stratified, which needs no such file"


@dataclass(frozen=True, kw_only=True)
class SplitFiles:
    """The files that say which images are for training, and which for testing."""

    train: Path
    test: Path
    """The same file, where one says both."""


@dataclass(frozen=True)
class _Line:
    """A line of such a file."""

    path: Path
    number: int
    fields: list[str]

    def wrong(self, why: str) -> JobError:
        text = "\t".join(self.fields)
        return JobError(f"{self.path}:{self.number}: {text!r} {why}", hint=_HINT)


def find_split_files(folders: Iterable[Path]) -> SplitFiles | None:
    """The first of them that are in one of the folders; None where there are none."""
    places = list(folders)
    for kind in ("people", "pairs"):
        for place in places:
            train, test = place / f"{kind}DevTrain.txt", place / f"{kind}DevTest.txt"
            if train.is_file() and test.is_file():
                return SplitFiles(train=train, test=test)
    ten = next((place / _TEN_SETS for place in places if (place / _TEN_SETS).is_file()), None)
    return None if ten is None else SplitFiles(train=ten, test=ten)


def split_by_files(root: Path, classes: Sequence[Found], files: SplitFiles) -> ImageParts:
    """The parts as the files say; JobError where they are damaged, or name what is not there."""
    train, test = _both_parts(files)
    images = {found.name: {PurePath(path).stem: path for path in found.paths} for found in classes}
    return ImageParts(
        train=_part(root, classes, train, images), test=_part(root, classes, test, images)
    )


def names_in_both(files: SplitFiles) -> bool:
    """Whether anybody is named for training and for testing; JobError for damaged files."""
    train, test = _both_parts(files)
    return not _people(train).isdisjoint(_people(test))


def _both_parts(files: SplitFiles) -> tuple[list[_Line], list[_Line]]:
    if files.train == files.test:
        return _cut(_lines(files.train))
    return _lines(files.train)[1:], _lines(files.test)[1:]


def _people(lines: Iterable[_Line]) -> set[str]:
    """A line of four fields names two: name, number, name, number."""
    return {name for line in lines for name in line.fields[:: 2 if len(line.fields) == 4 else 4]}


def _lines(path: Path) -> list[_Line]:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise unreadable(path, error) from None
    lines = [_Line(path, number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [line for line in lines if line.fields]
    if len(lines) < 2:
        raise JobError(f"{path} names no images", hint=_HINT)
    return lines


def _cut(lines: list[_Line]) -> tuple[list[_Line], list[_Line]]:
    """pairs.txt: all sets but the last, and the last; in each are as many pairs of one person as of
    two."""
    header, *pairs = lines
    numbers = [int(field) for field in header.fields if field.isdecimal()]
    if len(header.fields) != 2 or len(numbers) != 2 or 2 * numbers[0] * numbers[1] != len(pairs):
        raise header.wrong(
            f"must be the number of sets, and of pairs of either kind in each; {len(pairs):,} "
            "pairs follow"
        )
    last = 2 * numbers[1]
    return pairs[:-last], pairs[-last:]


def _part(
    root: Path,
    classes: Sequence[Found],
    lines: Iterable[_Line],
    images: dict[str, dict[str, str]],
) -> ImageFiles:
    chosen = {path for line in lines for path in _named(line, images)}
    return make_files(
        root, classes, ([path for path in found.paths if path in chosen] for found in classes)
    )


def _named(line: _Line, images: dict[str, dict[str, str]]) -> Iterator[str]:
    """The images that a line names."""
    match line.fields:
        case [name, _how_many]:
            yield from _of_person(line, name, images).values()
        case [name, first, second]:
            yield _image(line, name, first, images)
            yield _image(line, name, second, images)
        case [name, first, other, second]:
            yield _image(line, name, first, images)
            yield _image(line, other, second, images)
        case _:
            raise line.wrong("names neither a person nor a pair of images")


def _of_person(line: _Line, name: str, images: dict[str, dict[str, str]]) -> dict[str, str]:
    if name not in images:
        raise line.wrong(f"names {name}, of whom there are no images")
    return images[name]


def _image(line: _Line, name: str, number: str, images: dict[str, dict[str, str]]) -> str:
    stem = f"{name}_{number.zfill(4)}"
    path = _of_person(line, name, images).get(stem)
    if path is None:
        raise line.wrong(f"names {stem}, which is not there")
    return path
