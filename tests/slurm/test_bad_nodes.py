"""A node that is clearly slower than the others: found, written down, and left out."""

import json

from cluster_user import CPU, TWO
from interruptions import hosts

from hpcdist.runs import nodes

SLOW = """\
import os
from hpcdist.agent import preflight
slow = os.environ.get("SLURMD_NODENAME") == {bad!r}
preflight._time_product = lambda *_: 4.0 if slow else 1.0
"""


def test_a_slow_node_fails_the_preflight_and_the_job_goes_on_without_it(user):
    bad = user.cluster.nodes[1]
    user.write("sitecustomize.py", SLOW.format(bad=bad))
    setup = json.dumps([f"export PYTHONPATH={user.folder}:${{PYTHONPATH:-}}"])
    user.write("hpcdist.yaml", f"clusters: {{lab: {{setup: {setup}}}}}\n")
    script = user.write("work.py", 'print("worked", flush=True)\n')
    run = user.done(user.submit(script, *CPU, *TWO, "--set", "launch.preflight=true"))
    verdict = run.read_attempt_verdict(0)
    assert (verdict.kind, verdict.host, verdict.node) == ("launch", bad, 1)
    failed = f"node 1 (host {bad}) failed the preflight: a matrix product took 4.0 times as long"
    assert failed in verdict.message
    assert f"the job starts again without {bad}" in verdict.message
    assert run.newest_attempt() == 1
    assert bad not in hosts(user, run)
    (event,) = nodes.read([nodes.ledger_file()])
    assert (event.host, event.kind, event.run) == (bad, "preflight", run.id)
    assert "times as long as on the typical node" in user("cluster", "nodes").stdout
