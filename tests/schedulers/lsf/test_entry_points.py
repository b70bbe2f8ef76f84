"""submitit with hpcdist installed: as without it, but for LSF where that is."""

import configparser
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import submitit

REPOSITORY = Path(__file__).parents[3]
SUBMITIT = Path(submitit.__file__).parent
LIMIT_S = 100

SAYS_ITS_CLUSTERS = """
import json, sys
from submitit.core import plugins
found = {
    "executors": list(plugins.get_executors()),
    "environments": list(plugins.get_job_environments()),
    "modules": [name for name in sys.modules if name.startswith("hpcdist.")],
}
print(json.dumps(found))
"""


@pytest.fixture
def python(tmp_path):
    """Run Python, and have submitit find what setup.cfg registers for it."""
    declared = configparser.ConfigParser()
    declared.read(REPOSITORY / "setup.cfg")
    # Before what is installed, which may be an editable installation of some time ago.
    metadata = tmp_path / "registered" / "hpcdist-0.0.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: hpcdist\nVersion: 0.0.0\n")
    entry_points = declared["options.entry_points"]["submitit"].strip()
    (metadata / "entry_points.txt").write_text(f"[submitit]\n{entry_points}\n")
    (tmp_path / "bin").mkdir()

    def run(*arguments, **environment):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={
                **{name: text for name, text in os.environ.items() if not name.startswith("LSB_")},
                "PYTHONPATH": os.pathsep.join([str(metadata.parent), str(REPOSITORY)]),
                "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_submitits_own_tests_of_its_plugins_pass(python):
    tests = [str(SUBMITIT / "core" / "test_plugins.py"), str(SUBMITIT / "auto" / "test_auto.py")]
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--import-mode=importlib"]
    # Others of these submit jobs, which takes long.
    quick = ["-k", "not python_executor and not batch_watcher and not redirect"]
    assert " passed" in python("-m", "pytest", *options, *quick, *tests)


def test_without_lsf_submitit_knows_its_own_clusters_only(python):
    found = json.loads(python("-c", SAYS_ITS_CLUSTERS))
    assert found["executors"] == found["environments"] == ["slurm", "local", "debug"]
    assert not [name for name in found["modules"] if "plugin" in name]


def test_lsf_is_there_where_bsub_is_and_in_its_jobs(python, tmp_path):
    within_a_job = json.loads(python("-c", SAYS_ITS_CLUSTERS, LSB_JOBID="7"))
    bsub = tmp_path / "bin" / "bsub"
    bsub.write_text("#!/bin/sh\n")
    bsub.chmod(0o755)
    with_bsub = json.loads(python("-c", SAYS_ITS_CLUSTERS))
    for found in (within_a_job, with_bsub):
        assert found["executors"] == found["environments"] == ["slurm", "local", "debug", "lsf"]
