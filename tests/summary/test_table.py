"""The text of the summary: one golden, and what is said of odd runs."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from rank_ends import rank_end
from rich.console import Console
from summary_text import in_words
from summary_text import printed as in_terminal

from hpcdist.runs.verdict import Verdict
from hpcdist.summary import print_summary, summarize

KILLED = Verdict(
    kind="signal",
    state="failed",
    message="rank 1 (node 0, host a) was killed by SIGKILL after step 40",
    exit_code_of_run=1,
    first=rank_end(1),
    log="logs/rank-00001.log",
)


@pytest.fixture
def sweep(make_run, events):
    """One, two and four ranks; another batch size; a failed run; a torn file."""

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
        make("ddp-20260101-120300-dddd", 3000.0, gpus=2, train={"batch_size": 32}),
        make("ddp-20260101-120400-eeee", 3000.0, gpus=2, verdict=KILLED, torn=b'{"event"'),
    ]


def printed(summary, width=80, **options):
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=width, **options))
    return file.getvalue()


def stripped(text):
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_the_whole_summary_in_80_columns(sweep, monkeypatch):
    monkeypatch.chdir(sweep[0].path.parent.parent)
    text = printed(summarize(sweep, {}))
    assert max(map(len, text.splitlines())) <= 80
    assert stripped(text) == EXPECTED


EXPECTED = """\
ddp with batch_size=64: 4 ranks (2 x 2) are 3.20 times as fast as 1 (1 x 1): 80
% of the ideal speed-up (weak scaling).
  2 x 2: of its time 20 % is lost: 18 % in no phase that was recorded, 12 %
  waiting for the slowest rank, minus 10 % gained elsewhere.
  Waiting for the slowest rank is 12 % of the time, but no single rank is
  clearly the slowest: batches may take different times.
  Exposed communication is 12 % of the time: train.accumulate=2 or
  train.batch_size=128 communicates half as often: about 1.06 times as fast, at
  most 1.14 times as fast if it disappeared completely; `hpcdist submit
  allreduce` measures the network between the nodes.

batch_size=64: Weak scaling (10 samples per step for each GPU)
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

batch_size=32: Strong scaling (20 samples per step, shared by all GPUs)
 nodes                   step       speed-  effic.  differs
x gpus  runs  samples/s  (ms)           up     (%)  from *
 1 x 1     1  2,000 ± 0  5.00          1 *     100  -
 1 x 2     1  3,000 ± 0  6.67  1.50 ± 0.00      75  yes
* baseline of the speed-up; efficiency is speed-up per rank, 100 % is ideal
±: 95 % confidence interval over repeated runs; of what was run once, over equal
parts of the run, which does not show how runs differ

Speed of all ranks together, mean ± 95 % interval over equal parts of the run
                                                     nodes
#  run                       settings       state   x gpus  samples/s
1  ddp-20260101-120000-aaaa  batch_size=64  done     1 x 1  2,000 ± 0
2  ddp-20260101-120100-bbbb  batch_size=64  done     1 x 2  3,600 ± 0
3  ddp-20260101-120200-cccc  batch_size=64  done     2 x 2  6,400 ± 0
4  ddp-20260101-120300-dddd  batch_size=32  done     1 x 2  3,000 ± 0
5  ddp-20260101-120400-eeee  batch_size=64  failed   1 x 2  3,000 ± 0

Where the time goes: lost against the ideal, in % of all the time (ddp, weak
scaling)
    nodes   not  data  exposed  strag-  in no   in
#  x gpus  lost  wait    comm.   glers  phase  all
1   1 x 1   100     0        0       0      0    0
2   1 x 2    90     1       -3       6      6   10
3   2 x 2    80     2      -12      12     18   20
exposed comm.: the time that ranks wait for communication that no computing
hides

Where the time goes: lost against the ideal, in % of all the time (ddp, strong
scaling)
    nodes   not  data  exposed  strag-  in no   in
#  x gpus  lost  wait    comm.   glers  phase  all
1   1 x 1   100     0        0       0      0    0
4   1 x 2    75     2        2       6     15   25
exposed comm.: the time that ranks wait for communication that no computing
hides

Time of one step, mean and sd of all steps and ranks; what was learned; memory
   step time    sd  median   p95            test  accuracy  peak mem.
#       (ms)  (ms)    (ms)  (ms)  epochs    loss       (%)      (MiB)  restarts
1       5.00  0.00    5.00  5.00      20  0.0812     97.78        300         0
2       5.56  0.00    5.56  5.56      20  0.0812     97.78        300         0
3       6.25  0.00    6.25  6.25      20  0.0812     97.78        300         0
4       6.67  0.00    6.67  6.67      20  0.0812     97.78        300         0
5       6.67  0.00    6.67  6.67      20  0.0812     97.78        300         0

  #5: rank 1 (node 0, host a) was killed by SIGKILL after step 40 (log:
  logs/rank-00001.log)

What could not be read:
  runs/ddp-20260101-120400-eeee/events/rank-00000.jsonl: 1 torn line skipped
  runs/ddp-20260101-120400-eeee/events/rank-00001.jsonl: 1 torn line skipped"""


def test_no_escape_codes_where_it_is_no_terminal_or_colour_is_not_wanted(sweep, monkeypatch):
    assert "\x1b" not in printed(summarize(sweep, {}))
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = printed(summarize(sweep, {}), force_terminal=True, color_system="standard")
    assert "\x1b[31m" not in coloured
    assert "\x1b[32m" not in coloured


def test_text_of_others_does_not_act_on_the_terminal(make_run):
    evil = Verdict(
        kind="exception",
        state="failed",
        message="bad\x1b[2Jthing [bold]\nhappened",
        exit_code_of_run=1,
    )
    text = printed(summarize([make_run("run", job="a [red]job[/]\n'x'", verdict=evil)], {}))
    assert "a [red]job[/] 'x': no run is done (1 failed). The newest run: bad\\x1b[2Jthing" in text


def test_a_single_run_is_told_with_what_to_do_next_and_a_failed_one_once(sweep):
    text = in_words(sweep[2:3])
    assert text.startswith("ddp: 6,400 ± 0 samples/s on 4 ranks. To measure a speed-up, submit it")
    assert "not compared" not in text
    text = in_words(sweep[4:])
    assert text.startswith("ddp: no run is done (1 failed). The newest run: rank 1 (node 0, host")
    assert text.count("was killed") == 1


def test_of_long_tables_the_terminal_has_the_first_rows(make_run):
    text = in_terminal([make_run(f"run-{number:02}") for number in range(45)])
    assert len(re.findall(r"^ *\d+ +run-\d+ ", text, re.MULTILINE)) == 40
    assert "... and 5 rows more: --csv and --html have all" in text


def test_a_summary_imports_neither_torch_nor_numpy_and_rich_only_to_print():
    code = (
        "import sys; from hpcdist.summary import summarize, to_json; to_json(summarize([], {}));"
        "print(*(m for m in ('torch', 'numpy', 'matplotlib', 'rich') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


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
