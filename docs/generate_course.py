"""Run the commands of the pages in docs/course/, and write what they print and draw into the pages.

    python docs/generate_course.py                all pages; takes some minutes
    python docs/generate_course.py 3 8            these

In a page, the lines `$ COMMAND` of a block ```console are executed in the folder that `hpcdist course N` makes, one
after the other, and what they print stands below them. Comments before a block say

    <!-- show: REGEX -->        keep the lines in which this is found, and ... for others between them
    <!-- quick: ARGUMENTS -->   what tests/cli/test_course.py appends to each command; `no`: it runs none

and before an image, <!-- from: PATTERN --> says which file is copied to its place. Sentences are broken at 85 columns.
Numbers change from time to time: read the pages after this, whether their words are still true.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

COURSE = Path(__file__).parent / "course"
_HOME = "/home/ann/course"
"""What stands in the pages in place of the temporary folder."""
_BLOCK = re.compile(r"((?:<!-- .*? -->\n)*)```console\n(.*?)```\n", re.DOTALL)
_PICTURE = re.compile(r"<!-- from: (.*?) -->\n!\[[^\]]*\]\((.*?)\)")
_LIMIT_S = 900
_COLOURS = 64
_WIDTH = 85


@dataclass(frozen=True)
class Block:
    """Commands of a page, with what they printed."""

    text: str
    """As it stands in the page, without the comments before it and the fence."""
    show: str | None
    quick: str | None

    def commands(self) -> list[tuple[str, list[str]]]:
        """Return each command with the lines below it."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found and found[-1][0].endswith("\\"):
                command, printed = found[-1]
                found[-1] = (f"{command}\n{line}", printed)
            else:
                found[-1][1].append(line)
        return found


def pages() -> list[Path]:
    """Return the page of each exercise, in their order."""
    return sorted(COURSE.glob("[0-9]*.md"), key=number)


def number(page: Path) -> int:
    return int(page.name.partition("-")[0])


def blocks(text: str) -> list[Block]:
    return [_block(match) for match in _BLOCK.finditer(text)]


def _block(match: re.Match[str]) -> Block:
    directives = dict(re.findall(r"<!-- (\w+): (.*?) -->", match[1]))
    return Block(match[2], directives.get("show"), directives.get("quick"))


def shown(printed: str, pattern: str | None) -> list[str]:
    """Return the lines of an output that a page shows; of bars and lines rewritten, the last state."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in printed.strip("\n").splitlines()]
    if pattern is None:
        return lines
    kept: list[str] = []
    for line in lines:
        if re.search(pattern, line):
            kept.append(line)
        elif kept and kept[-1] != "...":
            kept.append("...")
    return kept[:-1] if kept and kept[-1] == "..." else kept


def broken(line: str) -> list[str]:
    """Return a printed line as lines that fit; the rows of a table are within the width already."""
    indent = line[: len(line) - len(line.lstrip())] + "  "
    wrapper = textwrap.TextWrapper(
        _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(line) or [""]


def _run(command: str, folder: Path) -> str:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "ignore",  # torch's, on workers, would fill the pages
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin take the CPUs from other programs
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    return done.stdout


def _made_anew(page: Path, root: Path) -> str:
    """Return the page with what its commands print now; its pictures are copied."""
    name = page.stem
    print(f"{name} ...", flush=True)
    _run(f"hpcdist course {number(page)}", root)
    folder = root / f"course-{name}"

    def block(match: re.Match[str]) -> str:
        lines = []
        for command, _ in _block(match).commands():
            printed = _run(command, folder).replace(str(root), _HOME)
            lines.append(f"$ {command}")
            lines += [part for line in shown(printed, _block(match).show) for part in broken(line)]
        return f"{match[1]}```console\n" + "".join(f"{line}\n" for line in lines) + "```\n"

    text = _BLOCK.sub(block, page.read_text())
    for pattern, place in _PICTURE.findall(text):
        newest = max(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
        _copy_picture(newest, COURSE / place)
    return text


def _copy_picture(source: Path, target: Path) -> None:
    """Copy a PNG with few colours, so that it is small."""
    from PIL import Image

    target.parent.mkdir(exist_ok=True)
    with Image.open(source) as image:
        rgb = image.convert("RGB")
        rgb.thumbnail((1000, 1000))
        rgb.quantize(_COLOURS).save(target, optimize=True)


def main() -> None:
    """Make the pages anew that the arguments name, or all."""
    wanted = set(map(int, sys.argv[1:]))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary).resolve()
        _run("hpcdist data faces --make lfw", root)
        for page in pages():
            if not wanted or number(page) in wanted:
                page.write_text(_made_anew(page, root))


if __name__ == "__main__":
    main()
