"""What Slurm's accounting adds to a summary."""

import json


def test_a_summary_has_the_waiting_time_and_the_memory_of_each_job(
    slurm, submit_to, hpcdist, write_script
):
    runs = [
        submit_to(slurm, write_script("import time; time.sleep(1.5)"), f"--nodes={nodes}")
        for nodes in (1, 2)
    ]
    for run in runs:
        assert run.verdict().kind == "done"
    folder = f"--runs={runs[0].run.path.parent}"

    def summary():
        found = json.loads(hpcdist(slurm, "summary", "--json", folder).stdout)
        books = [one["accounting"] for one in found]
        # slurmdbd is told some seconds after the end.
        return found if all(book and book["end_s"] for book in books) else None

    found = runs[0].wait(summary)
    one, two = (run["accounting"] for run in found)
    assert (len(one["nodes"]), len(two["nodes"])) == (1, 2)
    assert set(two["nodes"]) <= {f"127.0.1.{number}" for number in range(1, 5)}
    for run, book in zip(runs, (one, two), strict=True):
        assert book["job_id"] == run.run.read_job_id()
        assert (book["state"], book["exit_code"], book["signal"]) == ("COMPLETED", 0, None)
        assert book["elapsed_s"] == book["end_s"] - book["start_s"] > 0
        assert book["queue_wait_s"] == book["start_s"] - book["submit_s"] >= 0
        assert book["energy_j"] is None
    for run in found:
        cost, book = run["cost"], run["accounting"]
        assert (cost["source"], cost["held_s"]) == ("accounting", book["elapsed_s"])
        assert cost["cpu_hours"] == cost["num_cpus"] * book["elapsed_s"] / 3600
        assert cost["waiting_share"] == book["queue_wait_s"] / (
            book["queue_wait_s"] + book["elapsed_s"]
        )
    _, _, resources = hpcdist(slurm, "summary", "--details", folder).stdout.partition("Resources")
    times = [line.split()[:3] for line in resources.splitlines() if line.startswith(("1", "2"))]
    assert times == [
        [str(number), f"{book['queue_wait_s']:.1f}", f"{book['elapsed_s']:.1f}"]
        for number, book in enumerate((one, two), 1)
    ]


def test_a_cluster_whose_accounting_does_not_answer_is_told_and_summarized(
    slurm, submit_to, hpcdist, write_script, tmp_path
):
    run = submit_to(slurm, write_script("pass"))
    run.verdict()
    shim = tmp_path / "bin" / "sacct"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\necho 'sacct: error: Problem talking to the database' >&2\nexit 1\n")
    shim.chmod(0o755)
    done = slurm.run(
        *("sh", "-c", 'PATH="$0:$PATH" exec "$@"', str(shim.parent)),
        *("python", "-m", "hpcdist", "summary", "--json", f"--runs={run.run.path.parent}"),
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)[0]["accounting"] is None
    assert "waiting times and the other accounting of slurm are not known" in done.stderr
    assert "Problem talking to the database" in done.stderr
