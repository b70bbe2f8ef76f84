"""A command beside a rank of a living run."""

from hpcdist.cli.main import main

WAITS = """
import os, pathlib, time
print("here", flush=True)
while not pathlib.Path(os.environ["HPCDIST_RUN_DIR"], "go").exists():
    time.sleep(0.05)
"""


def test_attach_imports_nothing_from_the_working_directory_and_names_the_rank(
    launch, write_script, tmp_path, monkeypatch, capfd
):
    launched = launch(write_script(WAITS, "waits.py"), gpus=2)
    launched.wait(lambda: "here" in launched.log(1))
    foreign = tmp_path / "foreign"
    (foreign / "hpcdist").mkdir(parents=True)
    for planted in ("hpcdist/__init__.py", "argparse.py", "pathlib.py"):
        (foreign / planted).write_text("open('attacked', 'w'); raise SystemExit(66)")
    monkeypatch.chdir(foreign)
    # To open its memory is what py-spy, gdb and strace may only where they may trace it.
    show = 'echo $RANK $WORLD_SIZE $HPCDIST_RANK_PID; : < "/proc/$HPCDIST_RANK_PID/mem"; exit 7'
    assert main(["attach", str(launched.run.path), "--rank", "1", "--", "sh", "-c", show]) == 7
    assert capfd.readouterr().out.split() == ["1", "2", str(launched.pid(1))]
    assert not (foreign / "attacked").exists()
    (launched.run.path / "go").touch()
    assert launched.verdict().state == "done"
