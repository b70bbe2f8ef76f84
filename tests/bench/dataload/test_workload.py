"""The data-loading benchmark: real ranks that load."""

import re

import pytest
from PIL import Image
from summary_text import in_words

from hpcdist.summary import summarize, to_json

LIMIT_S = 120.0
"""Ranks and their workers, on machines that do other things too."""


@pytest.fixture
def pictures(tmp_path):
    """A folder of 2 classes with 12 pictures each, and two files that are none."""
    root = tmp_path / "pictures"
    for name, colour in (("cats", (200, 10, 10)), ("dogs", (10, 10, 200))):
        (root / name).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (24, 24), colour).save(root / name / f"{number:02}.jpg")
    return root


def cells_of(launched):
    return [event for event in launched.events(0) if event["event"] == "cell"]


def submit_pictures(submit_job, root, *overrides, **options):
    return submit_job(
        "dataload",
        "data.name=image_folder",
        f"data.root={root}",
        "data.batch_size=4",
        "data.batches_to_check=3",
        "data.transform=none",
        *overrides,
        **options,
    )


def test_every_way_of_loading_is_timed_in_two_turns_and_summed_up(submit_job, pictures):
    launched = submit_pictures(
        submit_job,
        pictures,
        *("data.workers=[0,2]", "data.transform=[none,light]", "data.repeats=3"),
        gpus=2,
    )
    assert launched.verdict(LIMIT_S).state == "done", launched.everything_said()
    cells = cells_of(launched)
    ways = [(cell["keys"]["transform"], cell["keys"]["workers"]) for cell in cells]
    forwards = [("none", 0), ("none", 2), ("light", 0), ("light", 2)]
    assert ways == [*forwards, *forwards[::-1]]
    assert [cell["repeats"] for cell in cells] == [2] * 4 + [3] * 4
    for cell in cells:
        assert cell["rate"] == pytest.approx(2 * 4 / cell["mean_time_s"])  # of both ranks
        assert cell["more"]["first_batch_time_s"] > 0
        assert set(cell["parts_s"]) == {"read", "decode", "transform", "collate", "hand_over"}

    summary = summarize([launched.run], {})
    told = to_json(summary)[0]["benchmark"]
    assert len(told["tables"][0]["cells"]) == 4
    first = told["conclusions"][0]
    assert re.match(r"Use (no|\d+) workers? \(data.workers=\d\): .* images/s with", first)
    text = in_words(summary)
    assert text.startswith(f"dataload: {first}"[:60])
    assert "loading image_folder by workers on each of 2 ranks, mean ± 95 %" in text


def test_a_file_that_is_no_image_is_told_in_words_with_what_to_do(submit_job, pictures):
    (pictures / "cats" / "b\n\x1b[31m.jpg").write_bytes(b"")
    launched = submit_pictures(submit_job, pictures, "data.workers=[1]", "data.batches_to_check=7")
    verdict = launched.verdict(LIMIT_S)
    assert verdict.state == "failed"
    assert f"failed first: {pictures}/cats/b" in verdict.message
    *_, error, hint = launched.log(0).splitlines()
    assert error == f"error: {pictures}/cats/b\\n\\x1b[31m.jpg is empty"
    assert hint.startswith("hint: remove it; hpcdist data check names all such files")


def test_a_data_set_of_the_users_is_measured_as_it_is(submit_job):
    launched = submit_job(
        "dataload",
        "data.dataset=own_data:make",
        *("data.workers=[0,1]", "data.batch_size=4", "data.batches_to_check=5"),
        "data.repeats=2",
        change="own_data:nothing",  # imports it
    )
    assert launched.verdict(LIMIT_S).state == "done", launched.everything_said()
    cells = cells_of(launched)
    assert [cell["keys"] for cell in cells[:2]] == [
        {"batch_size": 4, "workers": 0},
        {"batch_size": 4, "workers": 1},
    ]
    assert set(cells[0]["parts_s"]) == {"wait", "item", "collate", "hand_over"}
    (told,) = to_json(summarize([launched.run], {}))
    answer, least = told["benchmark"]["conclusions"]
    assert re.match(r"Use (no workers|1 worker) \(num_workers=\d\): .* samples/s", answer)
    assert least.startswith("Loading keeps up with training steps of ")


def test_a_function_that_gives_no_data_set_is_an_error_with_what_to_do(submit_job):
    launched = submit_job("dataload", "data.dataset=own_data:nothing", change="own_data:nothing")
    assert "gives a list without samples" in launched.verdict(LIMIT_S).message
    assert "hint: return a map-style Dataset" in launched.log(0)
