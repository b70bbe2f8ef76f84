"""A scheduler that starts a job again when the test does: it leaves a file that asks for it."""

from hpcdist.schedulers.requeue import Decision


class TestRequeuer:
    """What the agents of one run see of it."""

    __test__ = False
    can_requeue = True
    shares_files = True
    patience_s = 100.0
    kill_wait_s = 30.0

    def __init__(self, run_path):
        self._path = run_path
        self._life = len(list(run_path.glob("requeue-*")))

    def own_job_id(self):
        return None

    def life(self):
        return self._life

    def decide(self, _verdict):
        return Decision(sequel="requeue", cause="nothing")

    def requeue(self, _run):
        (self._path / f"requeue-{self._life}").touch()
