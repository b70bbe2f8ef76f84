"""The former place of `hpcdist.schedulers.tasks`."""

from hpcdist.schedulers.tasks import (
    adopt,
    claim_file,
    end_unless_adopted,
    leave_to_another,
    owner_of,
    place_of,
)

__all__ = ["adopt", "claim_file", "end_unless_adopted", "leave_to_another", "owner_of", "place_of"]
