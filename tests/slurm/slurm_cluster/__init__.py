"""A real Slurm of several nodes on one machine, booted for tests and gone after them.

`Cluster` in cluster.py is what tests use. munged, MariaDB, slurmdbd, slurmctld and one slurmd per
node run in a temporary folder, as any user, below a supervisor that ends them all when the tests
end, however that is. config.py has the nodes and all settings, daemons.py how each daemon is
started; with `network=NAMESPACES` (namespaces.py) each node has its own network and hostname.
"""
