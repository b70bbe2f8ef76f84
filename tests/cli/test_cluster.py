"""`hpcdist cluster`, and the profile that a submission goes by."""

import json
import os

import pytest

SINFO = "cpu*|2|64|256000|(null)|1:00:00|up\ngpu|4|32|256000|gpu:a100:4|2-00:00:00|up\n"
PROFILE = """
default: gpu
clusters:
  gpu: {scheduler: slurm, partition: gpu, setup: [module load cuda, b], environment: {A: "1"}}
  bad: {qso: x}
"""


@pytest.fixture
def slurm(hpcdist):
    """A site with Slurm, by the commands on PATH; call it to have a command answer otherwise."""

    def answer(command, text, exit_code=0):
        path = hpcdist.write(
            f"bin/{command}", f"#!/bin/sh\ncat <<'END'\n{text}END\nexit {exit_code}\n"
        )
        path.chmod(0o755)

    answer("sbatch", "slurm 23.02\n")
    answer("sinfo", SINFO)
    answer("scontrol", "SelectType              = select/cons_tres\n")
    answer("sacctmgr", "proj\nproj\n")
    hpcdist.environment["PATH"] = f"{hpcdist.folder}/bin:{os.environ['PATH']}"
    return answer


def test_detect_writes_what_show_reads_or_says_what_sinfo_said(hpcdist, slurm):
    printed = hpcdist("cluster", "detect")
    assert 'partition: "gpu"' in printed.stdout
    assert not (hpcdist.folder / "hpcdist.yaml").exists()
    written = hpcdist("cluster", "detect", "--write")
    assert (written.returncode, written.stdout) == (0, ""), written.stderr
    assert (hpcdist.folder / "hpcdist.yaml").read_text() == printed.stdout
    shown = json.loads(hpcdist("cluster", "show", "--json").stdout)
    wanted = {"gpu_type": "a100", "account": "proj", "cpus_per_gpu": 8}
    assert (shown["name"], wanted.items() <= shown["profile"].items()) == ("gpu", True)
    assert shown["origins"]["account"] == "hpcdist.yaml"
    assert shown["origins"]["qos"] == "default"
    assert hpcdist("cluster", "detect", "--write").returncode == 2
    slurm("sinfo", "", exit_code=1)
    done = hpcdist("cluster", "detect")
    assert done.returncode == 3
    assert "error: sinfo --noheader" in done.stderr
    assert "exit code 1" in done.stderr


def test_show_has_a_line_for_every_key_with_its_origin(hpcdist):
    assert "hpcdist cluster detect --write" in hpcdist("cluster", "show").stderr
    hpcdist.write("hpcdist.yaml", PROFILE)
    shown = hpcdist("cluster", "show")
    assert "note: cluster gpu; there are gpu, bad" in shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0] == ["KEY", "VALUE", "FROM"]
    assert ["partition", "gpu", "hpcdist.yaml"] in lines
    assert ["setup", '["module', "load", 'cuda","b"]', "hpcdist.yaml"] in lines
    assert ["environment", '{"A":"1"}', "hpcdist.yaml"] in lines
    assert ["qos", "-", "default"] in lines


def test_a_profile_that_ships_is_listed_printed_and_written_and_no_other(hpcdist):
    listed = hpcdist("cluster", "copy")
    assert any(line.startswith("dtu ") for line in listed.stdout.splitlines()[1:])
    done = hpcdist("render", "ddp", "--cluster", "dtu")
    assert "`hpcdist cluster copy dtu --write` makes one of the shipped file" in done.stderr
    printed = hpcdist("cluster", "copy", "dtu")
    assert not (hpcdist.folder / "hpcdist.yaml").exists()
    written = hpcdist("cluster", "copy", "dtu", "--write")
    assert (written.returncode, written.stdout) == (0, "")
    assert (hpcdist.folder / "hpcdist.yaml").read_text() == printed.stdout
    shown = json.loads(hpcdist("cluster", "show", "dtu", "--json").stdout)
    assert shown["profile"]["scheduler"] == "lsf"
    done = hpcdist("cluster", "copy", "dut")
    assert done.returncode == 2
    assert "error: no profile called 'dut' comes with hpcdist" in done.stderr


def test_a_run_records_the_profile_it_went_by(hpcdist):
    hpcdist.write("hello.py", "print('hello')\n")
    hpcdist.write(
        "hpcdist.yaml",
        "clusters: {here: {scheduler: local, account: a, environment: {NCCL_DEBUG: INFO, A: b}}}\n",
    )
    done = hpcdist(
        *("submit", "hello.py", "--wait", "--account", "mine", "--time", "0:10:00", "--json")
    )
    assert done.returncode == 0, done.stderr
    (run,) = hpcdist.runs
    spec = json.loads((run / "spec.json").read_text())
    assert spec["cluster"]["name"] == "here"
    assert spec["cluster"]["profile"]["account"] == "mine"
    assert spec["cluster"]["profile"]["environment"] == {"NCCL_DEBUG": "INFO", "A": "b"}
    assert spec["job"]["resources"]["time_limit_min"] == 10


def test_a_node_that_is_left_out_by_hand_is_taken_again_by_hand(hpcdist):
    assert "left out" in hpcdist("cluster", "nodes", "--pin", "n17").stdout
    taken = hpcdist("cluster", "nodes", "--forget", "n17").stdout
    assert "left out  " not in taken
    assert taken.splitlines()[-1].endswith("was taken again by hand")
