"""The course: files to start from, and pages whose commands still print what they show.

The commands run shortened as the pages say. Scripts are forked from a process that has imported
what they import.
"""

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from harness import AGENTS, Zygote, start_script

from hpcdist.cli.course import files_of, pages

ROOT = Path(__file__).parents[2]
FILES = ROOT / "course"
_AS_PYTHON = """\
import runpy, sys
sys.path[0] = "."
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_STARTERS = {
    1: [["lfw_dataset.py"], ["lfw_dataset.py", "-visualize_batch"]],
    2: [["workers.py", "-batches_to_check", "2", "-passes", "2"]],
    3: [["augmentation.py", "-batches_to_check", "1", "-passes", "1", "-num_workers", "1"]],
    4: [["handover.py"]],
    5: [["data_parallel.py", "--batch-sizes", "8", "--repeats", "2"]],
    12: [["fashion_trainer.py", "--epochs", "1"]],
    14: [["price.py"]],
}
"""Those that the pages do not show, with arguments that make them short; ranks are below."""
_OF_RANKS = {
    6: ["distributed.py", "--gpus", "2"],
    8: ["two_gpus.py", "--gpus", "2", "--", "--epochs", "1"],
    11: ["sharded.py", "--gpus", "2", "--", "--steps", "1"],
}


_spec = importlib.util.spec_from_file_location("generate_course", ROOT / "docs/generate_course.py")
sys.modules[_spec.name] = generator = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generator)


def test_each_exercise_has_a_script_to_fill_in_and_one_that_is_solved():
    used = [files_of(page) for page in pages().values()]
    for names in used:
        texts = {name: (FILES / name).read_text() for name in names}
        to_fill_in = [name for name, text in texts.items() if "TODO" in text]
        assert len(to_fill_in) == 1
        assert to_fill_in[0].replace(".py", "_solved.py") in names
    assert {name for names in used for name in names} == {
        path.name for path in FILES.iterdir() if path.is_file()
    }


def test_an_exercise_is_started_and_no_file_is_overwritten(hpcdist):
    listed = [line.split()[1] for line in hpcdist("course").stdout.splitlines()[1:]]
    assert [f"{n}-{name}" for n, name in enumerate(listed, 1)] == [
        page.stem for page in pages().values()
    ]
    started = hpcdist("course", 3)
    assert started.stdout.splitlines()[-1].endswith("python augmentation.py")
    assert "docs/course/3-augmentation.md, in the built site course/3-" in started.stdout
    folder = hpcdist.folder / "course-3-augmentation"
    assert sorted(path.name for path in folder.iterdir()) == [
        *("augmentation.py", "augmentation_solved.py", "lfw_dataset_solved.py"),
    ]
    hpcdist.write("course-3-augmentation/augmentation.py", "mine")
    (folder / "lfw_dataset_solved.py").unlink()
    again = hpcdist("course", "augmentation")
    assert (folder / "lfw_dataset_solved.py").exists()
    assert "augmentation.py is there already" in again.stderr
    assert (folder / "augmentation.py").read_text() == "mine"
    for wrong in ("0", "15", "no"):
        refused = hpcdist("course", wrong)
        assert (refused.returncode, refused.stdout) == (2, "")
    (open_to_all := hpcdist.folder / "open").mkdir()
    open_to_all.chmod(0o777)
    hpcdist.folder = open_to_all
    assert hpcdist("course", 1).returncode == 2
    assert not [*open_to_all.iterdir()]


@pytest.fixture
def with_torchvision():
    modules = ("torchvision.transforms", "torchvision.utils", "sklearn.datasets")
    drawing = "matplotlib.backends.backend_agg"
    with Zygote(*AGENTS, *modules, drawing) as process:
        yield process


@pytest.fixture
def run_words(hpcdist, with_torchvision, launch_from):
    """Run words of a command line in a folder; returns what it prints."""

    def as_script(folder, words):
        (folder / "as_python").write_text(_AS_PYTHON)
        code = start_script(with_torchvision, folder, "as_python", *words).wait(150)
        printed = (folder / "output").read_text()
        assert code == 0, (words, printed)
        return printed

    def as_ranks(folder, words):
        """A script with `--gpus N` before and its own arguments after `--`."""
        options, _, arguments = " ".join(words).partition(" -- ")
        gpus = int((re.findall(r"--gpus (\d+)", options) or [1])[0])
        script = folder / words[2]
        launched = launch_from(with_torchvision)(script, *shlex.split(arguments), gpus=gpus)
        assert launched.verdict().state == "done", launched.logs()
        return "\n".join(f"[rank {rank}] {launched.log(rank)}" for rank in range(gpus))

    def run(folder, words):
        if words[0] == "python":
            return as_script(folder, words[1:])
        if words[:2] == ["hpcdist", "submit"] and words[2].endswith(".py"):
            return as_ranks(folder, words)
        if words[0] != "hpcdist":
            return ""
        hpcdist.folder = folder
        done = hpcdist(*words[1:])
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


def headers(lines):
    """The lines of a table without any number: of them the columns' names, without their places."""
    found = (" ".join(line.split()) for line in lines if re.search(r"\S  +\S", line.strip()))
    return {line for line in found if not re.search(r"\d", line)}


def test_the_pages_commands_run_and_print_tables_with_the_headers_that_are_shown(
    hpcdist, run_words
):
    made = hpcdist("data", "faces", "--make", "lfw", "--people", 8, "--images", 32)
    assert made.returncode == 0, made.stderr
    folders = {}
    for number, page in pages().items():
        folders[int(number)] = folder = hpcdist.folder / f"course-{page.stem}"
        folder.mkdir()
        for name in files_of(page):
            shutil.copy(FILES / name, folder)
    num_tables = 0
    for page in generator.pages():
        number = generator.number(page)
        for block in generator.blocks(page.read_text()):
            if block.quick == "no":
                continue
            for command, lines in block.commands():
                words = shlex.split(command) + shlex.split(block.quick or "")
                if words[:2] == ["hpcdist", "submit"] and block.quick and words[2].endswith(".py"):
                    own = len(shlex.split(command))
                    words[own:own] = [] if "--" in words[:own] else ["--"]
                printed = run_words(folders[number], words)
                shown = headers(lines)
                num_tables += len(shown)
                assert shown <= headers(printed.splitlines()), f"{page.name}: {command}"
    assert num_tables >= 8
    for number, commands in _STARTERS.items():
        for words in commands:
            run_words(folders[number], ["python", *words])
    for number, words in _OF_RANKS.items():
        run_words(folders[number], ["hpcdist", "submit", *words])
