"""The course: files to start from, and pages whose commands still print what they show.

Of each kind one page is run: a script, by itself and as a job; ranks; a file of profiles. The
commands run as typed, in the folder of the page, shortened as the page says. Scripts, the command
and its agents are forked from one process that has imported what they import.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from harness import AGENTS, command_zygote, run_command, start_script

from hpcdist.cli.course import files_of, pages

ROOT = Path(__file__).parents[2]
FILES = ROOT / "course"
RUN = (1, 6, 13, 14)
"""Numbers of the pages that are run."""
_LIMIT_S = 150


_spec = importlib.util.spec_from_file_location("generate_course", ROOT / "docs/generate_course.py")
sys.modules[_spec.name] = generator = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generator)


def commands(page, *, are_run=False):
    """The commands that a page shows, as words, with the lines below them."""
    for block in generator.blocks(page.read_text()):
        quick = (block.quick or "").removeprefix("no")
        for command, lines in block.commands() if not are_run or block.quick != "no" else ():
            joined = command.replace("\\\n", " ")
            yield shlex.split(f"{joined} {quick}"), lines


def test_each_exercise_has_a_script_to_fill_in_and_one_that_is_solved():
    used = [files_of(page) for page in pages().values()]
    for names in used:
        texts = {name: (FILES / name).read_text() for name in names}
        to_fill_in = [name for name, text in texts.items() if "TODO" in text]
        for name in names:
            assert not name.endswith(".py") or compile(texts[name], name, "exec")
        assert len(to_fill_in) == 1
        assert to_fill_in[0].replace(".py", "_solved.py") in names
    assert {name for names in used for name in names} == {
        path.name for path in FILES.iterdir() if path.is_file()
    }


def test_pages_type_no_option_that_their_script_has_not():
    for page in generator.pages():
        for words, _ in commands(page):
            is_job = words[0] == "hpcdist"
            if words[0] == "python" or "--" in words:
                text = (FILES / words[1 + is_job]).read_text()
                own = words[words.index("--") if is_job else 1 :]
                assert all(f'"{one}"' in text for one in own if re.match("--?[a-z]", one)), words


def test_an_exercise_is_started_and_no_file_is_overwritten(hpcdist):
    listed = [line.split()[1] for line in hpcdist("course").stdout.splitlines()[1:]]
    assert [f"{n}-{name}" for n, name in enumerate(listed, 1)] == [
        page.stem for page in pages().values()
    ]
    started = hpcdist("course", 3)
    assert started.stdout.splitlines()[-1].endswith("python augmentation.py")
    folder = hpcdist.folder / "course-3-augmentation"
    assert len([*folder.iterdir()]) == 3
    hpcdist.write("course-3-augmentation/augmentation.py", "mine")
    (folder / "lfw_dataset_solved.py").unlink()
    again = hpcdist("course", "augmentation")
    assert (folder / "lfw_dataset_solved.py").exists()
    assert "augmentation.py is there already" in again.stderr
    assert (folder / "augmentation.py").read_text() == "mine"
    refused = hpcdist("course", "15")
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.fixture(scope="module")
def course():
    """A process from which all is forked that the pages start."""
    with command_zygote(*AGENTS, "torchvision.transforms.v2", "torchvision.utils") as process:
        yield process


def type_words(course, folder, words):
    """Type words of a command line in a folder; returns what is printed."""
    if words[0] == "python":
        code = start_script(course, folder, words[1], *words[2:]).wait(_LIMIT_S)
        printed = (folder / "output").read_text()
    elif words[0] == "hpcdist":
        done = run_command(
            course,
            words[1:],
            name="hpcdist_with_agents",
            cwd=folder,
            environment=os.environ,
            limit_s=_LIMIT_S,
        )
        code, printed = done.returncode, done.stdout + done.stderr
    else:
        code, printed = 0, subprocess.check_output(words, cwd=folder, text=True)
    assert code == 0, (words, printed)
    return printed


def columns(lines):
    """Words of the names of a table's columns. Their units, and where they are broken, depend on
    the values."""
    found = [line for line in lines if re.search(r"\S  +\S", line.strip())]
    words = " ".join(line for line in found if not re.search(r"\d", line)).split()
    return {word for word in words if not re.fullmatch(r"\(.?s\)", word)}


@pytest.mark.parametrize("number", RUN)
def test_the_commands_of_a_page_run_and_print_the_columns_that_are_shown(
    tmp_path, course, monkeypatch, number
):
    monkeypatch.delenv("HPCDIST_RUNS", raising=False)
    page = generator.pages()[number - 1]
    faces = ["hpcdist", "data", "faces", "--make", "lfw", "--people", "8", "--images", "16"]
    for words in ([faces] if number == 1 else []) + [["hpcdist", "course", str(number)]]:
        type_words(course, tmp_path, words)
    for words, lines in commands(page, are_run=True):
        printed = type_words(course, tmp_path / f"course-{page.stem}", words)
        assert columns(lines) <= columns(printed.splitlines()), words
