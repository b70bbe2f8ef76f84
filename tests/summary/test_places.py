"""The same job on several clusters: which was faster, and what it cost."""

import pytest
from summary_text import only_section

from hpcdist.base import files
from hpcdist.summary import summarize
from hpcdist.summary.report.text import to_csv

STEPS = 20


@pytest.fixture
def add_run(make_run, events):
    count = iter(range(100))

    def add(cluster, step_s, *, price=None, device="cpu", hours=1.0, section=None):
        run = make_run(f"ddp-{next(count)}", scheduler="azure" if cluster else "local")
        profile = {"scheduler": "azure", "price_per_hour": price} | (section or {})
        spec = files.read_json(run.spec_file)
        files.write_json(run.spec_file, spec | {"cluster": {"name": cluster, "profile": profile}})
        place = {"num_cpus": 4} if device == "cpu" else {}
        # Its windows differ a little: their spread says how sure a ratio is.
        windows = [
            events.window(
                step=STEPS * n, times_s=[step_s * (1 + 0.01 * (n % 3))] * STEPS, samples=32 * STEPS
            )
            for n in range(1, 11)
        ]
        start = events.start(0, world_size=1, device=device, **place)
        end = events.end() | {"time_s": hours * 3600.0}
        events.write(run, 0, [start, *windows, end])
        return run

    return add


def summary_of(*runs):
    return summarize(runs, {})


def conclusions_of(summary):
    return only_section(summary).conclusions


def columns_of(summary):
    """Those of the table of runs."""
    named = [[column.header for column in table.columns] for table in only_section(summary).tables]
    return next(names for names in named if "state" in names)


def test_the_summary_says_that_the_gpu_was_faster_and_what_that_cost(add_run):
    cpu = add_run("azure-cpu", 0.4, price=0.5)
    gpu = add_run("azure-gpu", 0.1, section={"price_per_hour": 3.0}, device="cuda:0")
    summary = summary_of(cpu, gpu)
    first, *_ = conclusions_of(summary)
    assert first == (
        "ddp: azure-gpu (GPU) is 4.00 (3.97 to 4.03) times as fast as azure-cpu (CPU) (1 x 1 each)"
        "; a run cost 3 there and 0.5 on azure-cpu, 0.17 times as many samples for the same money."
    )
    assert [run.cost.price for run in summary.runs] == pytest.approx([0.5, 3.0], rel=1e-3)
    assert "cluster" in columns_of(summary)


def test_a_gpu_that_is_slower_or_no_faster_is_said_to_be_so(add_run):
    cpu, slow = add_run("cpu", 0.1), add_run("gpu", 0.25, device="cuda:0")
    (first, *_) = conclusions_of(summary_of(cpu, slow))
    assert "gpu (GPU) is 0.40 times as fast as cpu (CPU)" in first
    assert "cost" not in first
    alike = add_run("gpu", 0.1, device="cuda:0")
    (first, *_) = conclusions_of(summary_of(cpu, alike))
    assert "so which of the two is faster is not certain" in first


def test_runs_of_one_place_have_no_column_for_it(add_run):
    summary = summary_of(add_run("cpu", 0.1), add_run("cpu", 0.1))
    assert summary.places == []
    assert "cluster" not in columns_of(summary)
    assert "cluster" in columns_of(summary_of(add_run(None, 0.1), add_run("cpu", 0.1)))


def test_images_have_a_column_where_they_differ_and_keep_runs_apart(add_run):
    def in_image(image, identity):
        run = add_run(None, 0.1)
        spec = files.read_json(run.spec_file)
        used = {"image": image, "runtime": "apptainer", "identity": identity}
        files.write_json(run.spec_file, spec | {"container": used})
        return run

    same = [in_image("/a/torch.sif", "sif:00"), in_image("/a/torch.sif", "sif:00")]
    assert "image" not in columns_of(summary_of(*same))
    others = [*same, in_image("/a/torch.sif", "sif:11"), in_image("/a/jax.sif", "sif:22")]
    summary = summary_of(*others)
    assert "image" in columns_of(summary)
    rows = [row for table in only_section(summary).tables for row in table.cells()]
    assert "/a/torch.sif (sif:11)" in " ".join(cell.text for row in rows for cell in row)
    assert len(summary.groups) == 3
    assert "/a/torch.sif (sif:00)" in to_csv(summary)
