"""The first step at which two runs part, and what they differ in: `hpcdist diff`."""

import json

import pytest

from hpcdist.cli.main import main
from hpcdist.runs.run import Run
from hpcdist.summary import summarize


def digests(steps, *, unlike_from=99):
    """Digests after these steps, with other parameters from one of them on."""
    return [
        {"event": "digest", "step": step, "parameters": f"{step}{'ab'[step >= unlike_from]}"}
        for step in steps
    ]


@pytest.fixture
def add(make_run, events, monkeypatch, tmp_path):
    """Add a run of one rank that has these events."""
    monkeypatch.chdir(tmp_path)

    def add(name, found, **options):
        events.write(make_run(name, **options), 0, [events.start(0, world_size=1), *found])

    return add


def diff(capsys, *args):
    capsys.readouterr()
    code = main(["diff", *args, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code == (0 if result["step"] is None else 1)
    return result


def test_equal_runs_do_not_part_whatever_their_settings(add, capsys):
    add("a", digests(range(0, 40, 10)))
    add("b", digests(range(0, 40, 10)), train={"lr": 0.5})
    ((key, values),) = diff(capsys, "a", "b")["differences"].items()
    assert (key, values[1]) == ("setting.train.lr", 0.5)


def test_the_first_step_at_which_digests_differ_is_named_with_what_else_does(add, capsys):
    add("a", digests(range(0, 40, 10)))
    add("b", digests(range(0, 40, 10), unlike_from=20), torch="2.16.0")
    parted = diff(capsys, "a", "b")
    assert (parted["step"], parted["equal_at"]) == (20, 10)
    assert parted["values"] == {"parameters": ["20a", "20b"]}
    assert main(["diff", "a", "b"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "a and b part at step 20, in the parameters (20a and 20b), and were equal at" in printed
    assert "2.15.0 2.16.0 version.torch" in printed


def test_without_digests_losses_are_compared_at_the_steps_that_both_have(add, events, capsys):
    def windows(*losses):
        return [
            events.window(step=step, times_s=[0.1] * 10, samples=10, loss=loss)
            for step, loss in zip((10, 20, 30), losses, strict=True)
        ]

    add("a", windows(1.0, 0.5, 0.25))
    add("b", windows(1.0, 0.5, 0.5)[1:])
    parted = diff(capsys, "a", "b")
    assert (parted["num_compared"], parted["step"], parted["equal_at"]) == (2, 30, 20)
    assert parted["values"] == {"loss": [0.25, 0.5]}
    assert main(["diff", "a", "b"]) == 1
    assert "nothing that they recorded of themselves differs" in capsys.readouterr().out


def test_runs_without_a_step_in_common_and_one_run_twice_are_refused(add, capsys):
    add("a", digests([10]))
    add("b", digests([20]))
    for names, message in {("a", "b"): "no step in common", ("a", "a"): "the same run"}.items():
        assert main(["diff", *names]) == 2
        assert message in capsys.readouterr().err


def test_other_code_is_a_difference_and_no_repeat_outside_of_git_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    loop = "from hpcdist import record\nfor _ in range(30): record.step(samples=1, loss=1.0)\n"
    texts = {"train.py": f"import beside\n{loop}", "beside.py": "from lib import deep\n"}
    names = []
    for number in range(3):
        texts |= {"other.py": f"# {number}\n"}  # no run imports it
        texts |= {"lib/deep.py": "# changed\n" if number == 2 else ""}
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        assert main(["submit", "train.py", "--local", "--wait"]) == 0
        names += sorted({path.name for path in (tmp_path / "runs").glob("train-*")} - {*names})
    assert diff(capsys, *names[:2])["differences"] == {}
    assert diff(capsys, *names[1:])["differences"].keys() == {"ran with.code"}
    runs = [Run(tmp_path / "runs" / name) for name in names]
    first, again, other = summarize(runs, {}).runs
    assert first.cell == again.cell != other.cell
    assert first.differs_in["code"] == again.differs_in["code"] != other.differs_in["code"]
