"""What interrupts a run on Slurm, and where it runs."""

from cluster_user import expand, job_id


def requeue(user, run):
    user.cluster.run("scontrol", "requeue", job_id(run))


def warn(user, run):
    user.cluster.run("scancel", "--signal=USR2", job_id(run))


def hosts(user, run):
    shown = user.cluster.run("scontrol", "--oneliner", "show", "job", job_id(run)).stdout
    (nodes,) = [word.partition("=")[2] for word in shown.split() if word.startswith("NodeList=")]
    return expand(nodes)
