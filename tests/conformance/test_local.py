"""The scenarios on this machine."""

import os
import signal

import pytest
from cluster_user import User, agent_pid
from machine import Machine
from scenarios import *  # noqa: F403
from scenarios import Site

NO_QUEUE = "this machine has no queue: a run starts at once, and is no job that comes back"
CANNOT = {
    "test_a_run_that_waits_says_why_and_can_be_cancelled": NO_QUEUE,
    "test_a_run_whose_job_is_killed_past_hpcdist_is_cancelled": "its agents are its job: see above",
    "test_a_run_goes_on_after_its_limit_and_its_summary_has_both_lives_and_accounting": NO_QUEUE,
    "test_a_sweep_is_an_array_per_shape_and_its_worst_end_counts": (
        "the command runs one point after the other: tests/cli/test_sweeps.py"
    ),
    "test_elements_of_an_array_are_requeued_and_cancelled_by_themselves": NO_QUEUE,
    "test_a_run_starts_after_another_as_it_is_told_and_says_so_where_it_never_can": (
        "the command itself waits for the other run: tests/cli/test_sweeps.py"
    ),
    "test_a_job_in_an_image_does_outside_what_takes_the_schedulers_commands": (
        "there are no such commands; runs in images here: tests/agent/test_container.py"
    ),
    "test_of_two_jobs_of_one_run_one_has_it_and_the_other_ends_at_once": NO_QUEUE,
    "test_a_node_that_was_lost_in_two_runs_is_left_out": "it is the only one",
}


class LocalSite(Site):
    """Nodes are simulated: all are this host."""

    def warn(self, run):
        for node in range(run.spec.outline.resources.nodes):
            os.kill(agent_pid(run, node), signal.SIGUSR2)


@pytest.fixture
def site(tmp_path, command_process):
    user = User(Machine(command_process), tmp_path, options=("--scheduler", "local"))
    return LocalSite(user=user, cannot=CANNOT)
