"""Snapshots: the user's work tree as it was at submission, for the job to run from.

`plan_snapshot` reads the tree and names the snapshot after its contents; `store` copies it into the
folder of the runs, once per contents.
"""

from hpcdist.runs.snapshot.plan import SnapshotPlan, SnapshotTooLargeError, plan_snapshot
from hpcdist.runs.snapshot.store import SnapshotChangedError, store
from hpcdist.runs.snapshot.tree import NoWorkTreeError

__all__ = [
    "NoWorkTreeError",
    "SnapshotChangedError",
    "SnapshotPlan",
    "SnapshotTooLargeError",
    "plan_snapshot",
    "store",
]
