"""What each rank of a training would read by itself, read as this is imported: before ranks are
forked. To read the images of digits and the entry points of all packages, in which torch looks for
backends, takes a third of the time of a rank that trains for a few steps."""

import importlib.metadata

from hpcdist.data.in_memory import check_digits
from hpcdist.job.spec import Data

_BACKENDS = {"group": "torch.distributed.backends"}

check_digits(Data())
_entry_points = importlib.metadata.entry_points
_backends = _entry_points(**_BACKENDS)
importlib.metadata.entry_points = lambda **which: (
    _backends if which == _BACKENDS else _entry_points(**which)
)
