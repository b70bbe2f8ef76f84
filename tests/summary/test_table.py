"""The text of the summary: one golden, and what is said of odd runs."""

from __future__ import annotations

import io

import pytest
from rank_ends import rank_end
from rich.console import Console
from summary_text import in_words

from hpcdist.runs.verdict import Verdict
from hpcdist.summary import print_summary, summarize

KILLED = Verdict(
    kind="signal",
    state="failed",
    message="rank 1 (node 0, host [red]a) was\x1b[2J killed",
    exit_code_of_run=1,
    first=rank_end(1),
    log="logs/rank-00001.log",
)


@pytest.fixture
def sweep(make_run, events):
    """One, two and four ranks; a failed run, whose files are torn."""

    def make(name, rate, *, nodes=1, gpus=1, torn=b"", **options):
        run = make_run(name, nodes=nodes, gpus=gpus, **options)
        world_size = nodes * gpus
        for rank in range(world_size):
            made = [
                events.window(
                    step=10 * index,
                    times_s=[100 * world_size / rate / 10] * 10,
                    samples=100,
                    phases_s={
                        "data_wait": [10 * world_size / rate / 10] * 10,
                        "exposed_communication": [(30 - 6 * rank) * world_size / rate / 10] * 10,
                    },
                )
                for index in range(1, 6)
            ]
            evaluation = {"event": "evaluate", "time_s": 1.0, "loss": 0.08124, "accuracy": 0.97775}
            epoch = {"event": "epoch", "time_s": 1.0, "epoch": 20}
            end = events.end(step=50, max_rss_bytes=300 * 2**20)
            start = events.start(rank, world_size=world_size, num_nodes=nodes)
            events.write(run, rank, [start, *made, evaluation, epoch, end], torn=torn)
        return run

    return [
        make("ddp-20260101-120000-aaaa", 2000.0),
        make("ddp-20260101-120100-bbbb", 3600.0, gpus=2),
        make("ddp-20260101-120200-cccc", 6400.0, nodes=2, gpus=2),
        make("ddp-20260101-120400-eeee", 3000.0, gpus=2, verdict=KILLED, torn=b'{"event"'),
    ]


def printed(summary, **options):
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=80, **options))
    return file.getvalue()


def test_the_whole_summary_in_80_columns(sweep, monkeypatch):
    monkeypatch.chdir(sweep[0].path.parent.parent)
    text = printed(summarize(sweep, {}))
    assert max(map(len, text.splitlines())) <= 80
    assert "\n".join(line.rstrip() for line in text.splitlines()) == EXPECTED


EXPECTED = """\
ddp: 4 ranks (2 x 2) are 3.20 times as fast as 1 (1 x 1): 80 % of the ideal
speed-up (weak scaling).
  2 x 2: of its time 20 % is lost: 18 % in no phase that was recorded, 12 %
  waiting for the slowest rank, minus 10 % gained elsewhere.
  Waiting for the slowest rank is 12 % of the time, but no single rank is
  clearly the slowest: batches may take different times.
  Exposed communication is 12 % of the time: train.accumulate=2 or
  train.batch_size=128 communicates half as often: about 1.06 times as fast, at
  most 1.14 times as fast if it disappeared completely; `hpcdist submit
  allreduce` measures the network between the nodes.

Weak scaling (10 samples per step for each GPU)
 nodes                   step       speed-  effic.  differs
x gpus  runs  samples/s  (ms)           up     (%)  from *
 1 x 1     1  2,000 ± 0  5.00          1 *     100  -
 1 x 2     1  3,600 ± 0  5.56  1.80 ± 0.00      90  yes
 2 x 2     1  6,400 ± 0  6.25  3.20 ± 0.00      80  yes
* baseline of the speed-up; efficiency is speed-up per rank, 100 % is ideal
±: 95 % confidence interval over repeated runs; of what was run once, over equal
parts of the run, which does not show how runs differ
No forecast for more GPUs: only one size is on several nodes: submit it with
another --nodes.

Speed of all ranks together, mean ± 95 % interval over equal parts of the run
                                      nodes
#  run                       state   x gpus  samples/s
1  ddp-20260101-120000-aaaa  done     1 x 1  2,000 ± 0
2  ddp-20260101-120100-bbbb  done     1 x 2  3,600 ± 0
3  ddp-20260101-120200-cccc  done     2 x 2  6,400 ± 0
4  ddp-20260101-120400-eeee  failed   1 x 2  3,000 ± 0

Where the time goes: lost against the ideal, in % of all the time
    nodes   not  data  exposed  strag-  in no   in
#  x gpus  lost  wait    comm.   glers  phase  all
1   1 x 1   100     0        0       0      0    0
2   1 x 2    90     1       -3       6      6   10
3   2 x 2    80     2      -12      12     18   20
exposed comm.: the time that ranks wait for communication that no computing
hides

Time of one step, mean and sd of all steps and ranks; what was learned; memory
   step time    sd  median   p95            test  accuracy  peak mem.
#       (ms)  (ms)    (ms)  (ms)  epochs    loss       (%)      (MiB)  restarts
1       5.00  0.00    5.00  5.00      20  0.0812     97.78        300         0
2       5.56  0.00    5.56  5.56      20  0.0812     97.78        300         0
3       6.25  0.00    6.25  6.25      20  0.0812     97.78        300         0
4       6.67  0.00    6.67  6.67      20  0.0812     97.78        300         0

  #4: rank 1 (node 0, host [red]a) was\\x1b[2J killed (log: logs/rank-00001.log)

What could not be read:
  runs/ddp-20260101-120400-eeee/events/rank-00000.jsonl: 1 torn line skipped
  runs/ddp-20260101-120400-eeee/events/rank-00001.jsonl: 1 torn line skipped"""


def test_there_is_no_colour_where_none_is_wanted(sweep, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = printed(summarize(sweep, {}), force_terminal=True, color_system="standard")
    assert "\x1b[31m" not in coloured
    assert "\x1b[32m" not in coloured


def test_a_single_run_is_told_with_what_to_do_next_and_a_failed_one_once(sweep):
    text = in_words(sweep[2:3])
    assert text.startswith("ddp: 6,400 ± 0 samples/s on 4 ranks. To measure a speed-up, submit it")
    assert "not compared" not in text
    text = in_words(sweep[3:])
    assert text.startswith("ddp: no run is done (1 failed). The newest run: rank 1 (node 0, host")
    assert text.count(" killed") == 1


def test_model_states_are_shown_in_mib_with_those_of_the_rank_that_has_most(make_run, events):
    def memory(parameters, gradients, optimizer):
        sizes = {"parameter_bytes": parameters, "gradient_bytes": gradients}
        return {"event": "memory", "time_s": 1.0, **sizes, "optimizer_bytes": optimizer}

    run = make_run("fsdp-a", gpus=2)
    for rank, size in enumerate((3 * 2**19, 2**20)):
        events.write(run, rank, [events.start(rank, world_size=2), memory(size, size, 2 * size)])
    summary = summarize([run], {})
    assert summary.runs[0].model_states.total_bytes == 6 * 2**20
    _, _, table = printed(summary).partition("Memory of the rank that uses most, in MiB\n")
    assert table.splitlines()[2].split() == ["1", "6.00", "1.50", "1.50", "3.00", "-", "-"]
