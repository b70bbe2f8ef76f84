"""Reading every file of a data set, as training will, to find those that are no images."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from hpcdist.data.images.contents import explain, explain_unread, no_warnings, read_image
from hpcdist.data.images.files import ImageFiles, ImageParts


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the files hold."""

    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(width, height) -> number of images."""
    formats: Counter[str] = field(default_factory=Counter)
    """As Pillow names them -> number of images."""
    num_bytes: int = 0
    """Of the images."""
    problems: dict[str, str] = field(default_factory=dict)
    """Path -> why the file is no image, in the order of the data set."""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What one file holds."""

    path: str
    problem: str | None = None
    size: tuple[int, int] = (0, 0)
    format: str = ""
    num_bytes: int = 0


def check_files(parts: ImageParts, tick: Callable[[], None] = lambda: None) -> Report:
    """Decode all files, several at a time; `tick` is called after each."""
    everything = [
        (part, path) for part in (parts.train, parts.test) for path in dict.fromkeys(part.paths)
    ]
    answers = []
    with no_warnings(), ThreadPoolExecutor(2 * len(os.sched_getaffinity(0))) as threads:
        for answer in threads.map(_look_into, everything):
            answers.append(answer)
            tick()
    good = [answer for answer in answers if answer.problem is None]
    return Report(
        sizes=Counter(answer.size for answer in good),
        formats=Counter(answer.format for answer in good),
        num_bytes=sum(answer.num_bytes for answer in good),
        problems={answer.path: answer.problem for answer in answers if answer.problem},
    )


def _look_into(file: tuple[ImageFiles, str]) -> _Answer:
    part, relative = file
    path = part.root / relative
    try:
        content = path.read_bytes()
    except OSError as error:
        return _Answer(path=str(path), problem=explain_unread(error))
    try:
        image = read_image(content)
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise whatever they come upon
        return _Answer(path=str(path), problem=explain(content, error))
    return _Answer(
        path=str(path), size=image.size, format=image.format or "?", num_bytes=len(content)
    )
