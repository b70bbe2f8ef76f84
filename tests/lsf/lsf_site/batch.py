"""What LSF's master daemon does: keeps the jobs, starts them when they can be, and ends them."""

import os
import signal
import time
from pathlib import Path

from lsf_site import dependency, execution, processes, schedule
from lsf_site.tasks import Tasks

_KILL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Batch:
    """The jobs of one site."""

    def __init__(self, config, folder, login_environment):
        self.config = config
        self.folder = Path(folder)
        self.bin = self.folder / "bin"
        self.login_environment = login_environment
        self.jobs = []
        self.next_id = 1001
        self.lost = {}
        """Hosts that are lost, and since when."""
        self.down = set()
        """Those of them of which LSF knows."""
        self.tasks = Tasks(self)
        self.popens = {}
        self.by_pid = {}

    # Looking.

    def find(self, job_id, index=None):
        """All elements of an array without an index."""
        found = [job for job in self.jobs if job.id == job_id]
        return found if index is None else [job for job in found if job.index == index]

    def new_id(self):
        self.next_id += 1
        return self.next_id - 1

    # The clock.

    def tick(self):
        """Do what is due; returns the seconds until something may be due again, None for never."""
        now = time.time()
        self.down |= {host for host, since in self.lost.items() if self._is_known(since, now)}
        for job in [*self.jobs]:
            self._follow_loss(job, now)
            self._send_due_signals(job, now)
            self._end_at_limit(job, now)
        self._forget(now)
        self._dispatch(now)
        due = [when for job in self.jobs for when in _due(job)]
        due += [when for job in self.jobs for when in self._due_after_loss(job)]
        due += [
            since + self.config.loss_known_s
            for host, since in self.lost.items()
            if host not in self.down
        ]
        due += [job.end_s + self.config.clean_period_s for job in self.jobs if job.has_ended]
        return max(0.0, min(due) - now) if due else None

    def _send_due_signals(self, job, now):
        while job.kills and job.kills[0][0] <= now:
            _, number = job.kills.pop(0)
            self.send(job, number)

    def _end_at_limit(self, job, now):
        if job.state == "RUN" and job.limit_s is not None and job.limit_s <= now:
            self.end_at_limit(job)

    def _is_known(self, since, now):
        return now - since >= self.config.loss_known_s

    def _follow_loss(self, job, now):
        """Of a job whose first host is lost: RUN, then UNKWN, and then with -r again from the
        queue."""
        if job.lost_s is None or not job.has_started:
            return
        if job.rerunnable and now - job.lost_s >= self.config.rerun_after_s:
            self.down.add(job.first_host)
            self.tasks.end_all(job)
            self.pend_again(job, "")
        elif job.state == "RUN" and self._is_known(job.lost_s, now):
            job.state = "UNKWN"

    def _due_after_loss(self, job):
        if job.lost_s is not None and job.has_started:
            if job.rerunnable:
                yield job.lost_s + self.config.rerun_after_s
            if job.state == "RUN":
                yield job.lost_s + self.config.loss_known_s

    def _forget(self, now):
        kept = now - self.config.clean_period_s
        self.jobs = [job for job in self.jobs if not (job.has_ended and job.end_s <= kept)]

    # Starting.

    def _dispatch(self, now):
        waiting = [job for job in self.jobs if job.state == "PEND"]
        waiting.sort(key=lambda job: -self.config.queue(job.queue).priority)
        for job in waiting:
            job.pending_reason = self._start_or_reason(job, now) or ""

    def _start_or_reason(self, job, now):
        if job.not_before_s > now:
            return "Requeued job is waiting for rescheduling"
        if job.condition and not (met := dependency.holds(job.condition, self.jobs, job.index)):
            return self._unmet(job, met)
        if job.array_limit and self._num_running(job.id) >= job.array_limit:
            return "The job array has reached its running element limit"
        places, reason = self._place(job)
        if places is None:
            return reason
        self._start(job, places)
        return ""

    def _place(self, job):
        while True:
            free = schedule.free_hosts(self.config, self.jobs, self.down)
            places, reason = schedule.place(job.request, free)
            if places is None or places[0].host not in self.lost:
                return places, reason
            self.down.add(places[0].host)  # its daemon does not answer

    def _unmet(self, job, met):
        if met is None and job.ends_as_orphan:
            self._finish(job, "EXIT", reason="TERM_ORPHAN_SYSTEM")
            return ""
        if met is None:
            return "Dependency condition invalid or never satisfied"
        return "Job dependency condition not satisfied"

    def _num_running(self, job_id):
        return sum(job.has_started for job in self.jobs if job.id == job_id)

    def _start(self, job, places):
        job.places = places
        job.attempts += 1
        job.state = "RUN"
        job.start_s = time.time()
        job.lost_s = None
        job.exit_code = job.signal = None
        job.term_reason = job.killed_as = job.requeues = ""
        if job.run_limit_min is not None:
            job.limit_s = job.start_s + job.run_limit_min * self.config.minute_s
        process = execution.start(job, self)
        job.pid = process.pid
        self.popens[process.pid] = process
        self.by_pid[process.pid] = job

    # Ending.

    def reap(self):
        """Take notice of every process that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code, number = processes.exit_code(status)
            if popen := self.popens.pop(pid, None):
                popen.returncode = code  # or it warns that its process goes on
            if job := self.by_pid.pop(pid, None):
                if job.pid == pid and job.state in ("RUN", "USUSP", "SSUSP"):
                    self._ended(job, code, number)
            else:
                self.tasks.ended(pid, code)

    def _ended(self, job, code, number):
        self._clean_up(job)
        job.exit_code, job.signal = code, number
        job.term_reason = job.killed_as
        if number and not job.killed_as:
            job.term_reason = "TERM_EXTERNAL_SIGNAL"
        if job.requeues:
            self.pend_again(job, job.requeues)
        else:
            self._finish(job, "EXIT" if code else "DONE", reason=job.term_reason)

    def _clean_up(self, job):
        job.kills, job.limit_s, job.pid = [], None, None
        self.tasks.end_all(job)

    def _finish(self, job, state, *, reason=""):
        job.state, job.end_s, job.term_reason = state, time.time(), reason
        if job.start_s is not None:
            execution.deliver(job, self)

    def pend_again(self, job, reason):
        """The same id, and hosts anew; what it has written so far is lost."""
        job.term_reason = reason
        job.state, job.places, job.start_s, job.end_s = "PEND", [], None, None
        job.requeues = job.killed_as = ""
        job.not_before_s = time.time() + self.config.requeue_delay_s

    # Being told to.

    def send(self, job, number):
        """A signal, to the process group on the first host."""
        if job.pid is None or job.state in ("UNKWN", "ZOMBI"):
            return
        processes.signal_group(job.pid, number)
        if job.state in ("USUSP", "SSUSP") and number != signal.SIGSTOP:
            processes.signal_group(job.pid, signal.SIGCONT)

    def kill(self, job, reason="TERM_OWNER"):
        """As bkill does: one signal after the other, until the script has ended."""
        if not job.has_started:
            self._finish(job, "EXIT", reason=reason)
            return
        self._plan_kill(job, reason)
        job.requeues = ""

    def requeue(self, job, reason="TERM_REQUEUE_OWNER"):
        """Ends it as a kill does; then it is pending again, unless its first host is lost."""
        if job.lost_s is not None and job.has_started:
            self.tasks.end_all(job)
            self._finish(job, "EXIT", reason=reason)
        elif job.has_started and job.pid is not None:
            self._plan_kill(job, reason)
            job.requeues = reason
        else:
            self.pend_again(job, reason)

    def _plan_kill(self, job, reason):
        """A kill that goes on is not begun anew; the grace of the run limit is cut short."""
        goes_on = job.kills and job.killed_as != "TERM_RUNLIMIT"
        job.killed_as = reason
        if not goes_on:
            interval = self.config.kill_interval_s
            now = time.time()
            job.kills = [(now + n * interval, number) for n, number in enumerate(_KILL_SIGNALS)]

    def end_at_limit(self, job):
        """SIGUSR2, and SIGKILL after the grace."""
        now = time.time()
        job.limit_s = None
        job.killed_as = "TERM_RUNLIMIT"
        job.kills = [(now, signal.SIGUSR2), (now + self.config.limit_grace_s, signal.SIGKILL)]

    def suspend(self, job, state="USUSP"):
        if job.state == "PEND":
            job.state = "PSUSP"
        elif job.state == "RUN":
            self.send(job, signal.SIGSTOP)
            job.state = state

    # Hosts.

    def lose_host(self, host):
        """As by a power cut; of which LSF knows later."""
        self.lost[host] = time.time()
        on_it = [job for job in self.jobs if job.has_started and job.first_host == host]
        for job in on_it:
            job.kills, job.limit_s, job.lost_s = [], None, self.lost[host]
        roots = {job.pid for job in on_it if job.pid} | self.tasks.lose(host)
        below = os.getpid()
        mark = {processes.HOST_MARK: host}
        processes.kill_all(lambda: processes.descendants(roots) | processes.marked(below, **mark))
        for job in on_it:
            self.by_pid.pop(job.pid, None)
            job.pid = None

    def return_host(self, host):
        """It has booted: what was on it is known to have ended."""
        self.lost.pop(host, None)
        self.down.discard(host)
        for job in self.jobs:
            if job.lost_s is not None and job.has_started and job.first_host == host:
                self.tasks.end_all(job)
                job.exit_code = 137
                self._finish(job, "EXIT", reason="TERM_ZOMBIE")

    def forget_all(self, *, kills=True):
        """Forget all jobs, and kill everything that is left of them or of earlier ones."""
        self.jobs = []
        self.by_pid = {}
        self.tasks.forget()
        self.lost, self.down = {}, set()
        own = os.getpid()
        if kills:
            processes.kill_all(lambda: processes.descendants([own]) - {own})


def _due(job):
    if job.kills:
        yield job.kills[0][0]
    if job.limit_s is not None:
        yield job.limit_s
    if job.state == "PEND" and job.not_before_s > time.time():
        yield job.not_before_s
