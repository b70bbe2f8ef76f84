"""Values that count where neither the job file nor a flag has one."""

import pytest

from hpcdist.job.load import Flag, load_job

NODES = {"resources.nodes": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workload: check\n", 3),
        ("workload: check\nresources:\n", 3),
        ("workload: check\nresources: {gpus: 2}\n", 3),
        ("workload: check\nresources: {nodes: 2}\n", 2),
    ],
    ids=["no section", "an empty section", "another key", "the key"],
)
def test_a_default_counts_where_the_file_says_nothing(tmp_path, text, expected):
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert load_job(file, defaults=NODES).job.resources.nodes == expected


def test_a_flag_comes_before_a_default(write_script):
    flags = {"resources.nodes": Flag(name="--nodes", value=1)}
    job = load_job(write_script("", "t.py"), flags=flags, defaults=NODES).job
    assert job.resources.nodes == 1


def test_a_script_takes_the_default(write_script):
    assert load_job(write_script("", "t.py"), defaults=NODES).job.resources.nodes == 3
