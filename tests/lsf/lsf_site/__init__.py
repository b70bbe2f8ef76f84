"""A simulated LSF for tests: its commands on PATH, behind which jobs really run on this machine.

`Site` in site.py is what tests use. One daemon per site stands for LSF's daemons on all hosts; the
commands carry what they were given to it, and print what it answers. It holds to the documentation
of IBM Spectrum LSF 10.1, and can be an older engine that knows less of it.

    def test_a_killed_job_has_ended(user):      # fixtures: see conftest.py
        job_id = user.cluster.submit("sleep 60", "-n", "2")
        user.cluster.wait_for_state(job_id, "RUN")
        user.cluster.run("bkill", job_id)
        assert user.cluster.wait_for_end(job_id) == "EXIT"
        assert user.cluster.job(job_id).reason == "TERM_OWNER"

`lsf_like(engine=STRICT, kill_interval_s=0.2)` is a site with other settings (SiteConfig).
"""
