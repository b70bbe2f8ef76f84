"""What each rank of a training would read by itself, read as this is imported: before ranks are
forked. To read the images of digits and the entry points of all packages, in which torch looks for
backends, takes a third of the time of a rank that trains for a few steps."""

import importlib.metadata

from hpcdist.data.in_memory import find_digits, read_digits

_BACKENDS = {"group": "torch.distributed.backends"}

read_digits(find_digits())
_entry_points = importlib.metadata.entry_points
_backends = _entry_points(**_BACKENDS)
importlib.metadata.entry_points = lambda **which: (
    _backends if which == _BACKENDS else _entry_points(**which)
)
