"""What a summary printed is printed again, at once, until something could make it another text."""

import time

import pytest

from hpcdist.cli.main import main
from hpcdist.summary import pipeline


@pytest.fixture(autouse=True)
def later(monkeypatch, tmp_path):
    """All changes of files are long ago, and the cache is this test's."""
    now_s = time.time() + 10
    monkeypatch.setattr("hpcdist.summary.read.kept.time.time", lambda: now_s)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def trained(make_run, events):
    """A run that has ended."""
    run = make_run("trained")
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([100.0] * 9)])
    return run


@pytest.fixture
def summary(trained, monkeypatch, capsys):
    """Run `hpcdist summary`; return what it printed, and whether the runs were looked at."""
    made = []
    make = pipeline.summarize

    def summarize(*args, **options):
        made.append(args)
        return make(*args, **options)

    monkeypatch.setattr(pipeline, "summarize", summarize)

    def run(*options):
        made.clear()
        assert main(["summary", "--runs", str(trained.path.parent), *options]) == 0
        return capsys.readouterr().out, bool(made)

    return run


def test_the_same_command_prints_the_same_without_looking_at_the_runs(summary):
    text, was_made = summary()
    assert "trained" in text
    assert was_made
    assert summary() == (text, False)
    assert summary("--no-cache") == (text, True)
    assert summary("--details")[1]
    assert not summary("--details")[1]


def add_events(run, _monkeypatch):
    with run.event_file(0).open("a") as file:
        file.write('{"event": "note", "message": "late"}\n')


def add_run(run, _monkeypatch):
    other = run.path.with_name("other")
    other.mkdir()
    for name in ("spec.json", "verdict.json"):
        (other / name).write_bytes((run.path / name).read_bytes())


def change_terminal(_run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")


def change_code(_run, monkeypatch):
    monkeypatch.setattr("hpcdist.summary.read.cache.__version__", "0.0.0")


def tear(run, _monkeypatch):
    for kept in (run.path.parent.parent / "cache/hpcdist/summary").glob("*.msgpack"):
        kept.write_bytes(kept.read_bytes()[:-1])


@pytest.mark.parametrize("change", [add_events, add_run, change_terminal, change_code, tear])
def test_a_summary_is_made_anew_where_its_text_may_be_another(
    summary, trained, monkeypatch, change
):
    summary()
    change(trained, monkeypatch)
    assert summary()[1]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda run: run.verdict_file.unlink(), id="it may go on"),
        pytest.param(lambda run: run.verdict_file.write_text("{"), id="a file is damaged"),
        pytest.param(
            lambda run: run.submission_file.write_text('{"scheduler": "slurm", "job_id": "7"}'),
            id="its scheduler is asked",
        ),
    ],
)
def test_a_text_that_may_be_another_one_tomorrow_is_not_kept(summary, trained, spoil):
    spoil(trained)
    assert summary()[1]
    assert summary()[1]
