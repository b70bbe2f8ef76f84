"""Workers of a DataLoader live through a scheduler's signals, and end when their rank says so."""

SCRIPT = """
import os, signal
from torch.utils.data import DataLoader
from hpcdist import record

options = {"num_workers": 2, "persistent_workers": True, "worker_init_fn": record.shield_worker}
batches = iter(DataLoader(list(range(64)), batch_size=1, **options))
first = [next(batches).item() for _ in range(2)]  # one of each: all are up
# From another process, as by a scheduler: what a parent sends to its child means something else.
if not (sender := os.fork()):
    for worker in batches._workers:
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGUSR2)
    os._exit(0)
assert os.waitpid(sender, 0)[1] == 0
assert [*first, *(batch.item() for batch in batches)] == list(range(64))
assert all(worker.is_alive() for worker in batches._workers)
print("alive", flush=True)
"""


def test_workers_survive_the_warnings_of_others_and_end_with_their_rank(launch, write_script):
    launched = launch(write_script(SCRIPT))
    assert launched.verdict().kind == "done", launched.log(0)
    assert launched.log(0) == "alive\n"
