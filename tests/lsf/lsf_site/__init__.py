"""A simulated LSF for tests: its commands on PATH, behind which jobs really run on this machine.

`Site` in site.py is what tests use. One daemon per site stands for LSF's daemons on all hosts; the
commands carry what they were given to it, and print what it answers. It holds to the documentation
of IBM Spectrum LSF 10.1, and can be an older engine that knows less of it.

    def test_a_killed_job_has_ended(lsf, tmp_path):      # fixtures: see conftest.py
        job_id = lsf.submit("sleep 60", "-n", "2", cwd=tmp_path)
        lsf.wait_for_state(job_id, "RUN")
        lsf.run("bkill", job_id)
        assert lsf.wait_for_end(job_id) == "EXIT"
        assert lsf.job(job_id).reason == "TERM_OWNER"

`lsf_like(engine=STRICT, kill_interval_s=0.2)` is a site with other settings (SiteConfig), and
`User(lsf_here, tmp_path)` of cluster_user.py calls hpcdist on its login host.
"""
