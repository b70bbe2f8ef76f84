"""The first step at which two runs part, and what they differ in: `hpcdist diff`."""

import json

import pytest

from hpcdist.cli.main import main

PARTS = ["body.weight", "head.weight"]


def digests(steps, *, unlike_from=99, **fields):
    """Digests after these steps, with other values from one of them on; `fields` are for it."""
    yield {"event": "digested", "parts": PARTS}
    for step in steps:
        is_unlike = step >= unlike_from
        head = "b" if is_unlike and "parameters" in fields else "a"
        yield {
            "event": "digest",
            "step": step,
            "parameters": f"{step}{head}",
            "parts": f"{'a' * 8}{head * 8}",
            "batch": f"{step}",
            "loss": 1 / (step + 1),
            "learning_rate": 0.1,
            **(fields if is_unlike else {}),
        }


@pytest.fixture
def add(make_run, events, monkeypatch, tmp_path):
    """Add a run of two ranks, of which the second has these events; or of one."""
    monkeypatch.chdir(tmp_path)

    def add(name, *own, attempts=None, world_size=2, **options):
        run = make_run(name, gpus=world_size, **options)
        start = events.start(0, world_size=world_size)
        if world_size > 1:
            events.write(run, 0, [start, *digests(range(0, 40, 10))])
        for attempt, found in enumerate(attempts or [own]):
            events.write(run, world_size - 1, [start, *found], attempt=attempt)
        return run

    return add


def diff(capsys, *args):
    capsys.readouterr()
    code = main(["diff", *args, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code == (1 if result["divergence"] else 0)
    return result


def test_equal_runs_do_not_part_whatever_their_settings(add, capsys):
    add("a", *digests(range(0, 40, 10)))
    add("b", *digests(range(0, 40, 10)), train={"lr": 0.5}, record={"digest": 10})
    found = diff(capsys, "a", "b")
    assert (found["compared_by"], found["num_compared"], found["num_ranks"]) == ("digests", 4, 2)
    settings = {one["key"]: one["changes_results"] for one in found["differences"]}
    assert settings == {"train.lr": True, "record.digest": False}
    assert main(["diff", "a", "b"]) == 0
    assert "a and b do not part: they are equal by their digests at 4 steps up to step 30." in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"parameters": "x", "loss": None}, "The same batch and learning rate gave something else"),
        ({"batch": "x", "parameters": "x"}, "The data differ"),
        ({"learning_rate": 0.2, "parameters": "x"}, "The learning rate differs"),
    ],
    ids=["computation", "data", "learning rate"],
)
def test_the_first_difference_is_named_with_its_kind_of_cause(add, capsys, fields, cause):
    add("a", *digests(range(0, 40, 10)))
    add("b", *digests(range(0, 40, 10), unlike_from=20, **fields), torch="2.16.0")
    parted = diff(capsys, "a", "b")["divergence"]
    assert (parted["step"], parted["equal_at"], parted["rank"]) == (20, 10, 1)
    assert sorted(parted["quantities"]) == sorted(
        {"learning_rate": "learning rate"}.get(name, name) for name in fields
    )
    assert (parted["first_part"], parted["num_parts"]) == ("head.weight", 1)
    assert main(["diff", "a", "b"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "a and b part at step 20, on rank 1, in" in printed
    assert cause in printed
    assert "version 2.15.0 2.16.0 torch" in printed


def test_what_a_restart_did_again_counts_once(add, capsys):
    add("a", *digests(range(0, 40, 10)))
    wrong = digests(range(0, 30, 10), unlike_from=20, parameters="x")
    add("b", attempts=[[*wrong], [*digests(range(10, 40, 10))]])
    assert diff(capsys, "a", "b")["divergence"] is None


def test_without_digests_losses_are_compared_at_the_steps_that_both_have(add, events, capsys):
    def windows(*losses):
        return [
            events.window(step=step, times_s=[0.1] * 10, samples=10, loss=loss)
            for step, loss in zip((10, 20, 30), losses, strict=True)
        ]

    add("a", *windows(1.0, 0.5, 0.25), world_size=1)
    add("b", *windows(1.0, 0.5, 0.5)[1:], world_size=1)
    found = diff(capsys, "a", "b")
    assert (found["compared_by"], found["num_compared"]) == ("losses", 2)
    parted = found["divergence"]
    assert (parted["step"], parted["equal_at"]) == (30, 20)
    assert parted["values"] == {"loss": [0.25, 0.5]}
    assert "--set record.digest=1 names the exact step" in found["notes"][0]
    assert main(["diff", "a", "b"]) == 1
    assert "Nothing that the runs recorded differs" in " ".join(capsys.readouterr().out.split())


def test_runs_without_a_step_in_common_and_one_run_twice_are_refused(add, capsys):
    add("a", *digests([10]), world_size=1)
    add("b", *digests([20]), world_size=1)
    for names, message in {("a", "b"): "no step in common", ("a", "a"): "the same run"}.items():
        assert main(["diff", *names]) == 2
        told = capsys.readouterr().err
        assert message in told
        assert ("record.start(model=model)" in told) == (names == ("a", "b"))
