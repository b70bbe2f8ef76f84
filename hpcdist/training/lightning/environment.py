"""Where this rank is, as Lightning wants to be told."""

from __future__ import annotations

import os

from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment

from hpcdist.rank.context import RankContext


class RankEnvironment(ClusterEnvironment):
    """The rank's own place, given to the Trainer explicitly: it then looks for no other, whatever
    the variables of Slurm, LSF or MPI say about the agent's place.

    MASTER_ADDR and MASTER_PORT are those that the agent set for this attempt.
    """

    def __init__(self, context: RankContext) -> None:
        super().__init__()
        self._context = context

    @property
    def creates_processes_externally(self) -> bool:
        """The agent has started the ranks: Lightning starts none."""
        return True

    @property
    def main_address(self) -> str:
        """Where the ranks meet."""
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        """Where the ranks meet."""
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        """Never found by itself."""
        return False

    def world_size(self) -> int:
        """Number of ranks."""
        return self._context.world_size

    def set_world_size(self, size: int) -> None:
        """Refuse another size than the run's."""
        assert size == self._context.world_size

    def global_rank(self) -> int:
        """Rank among all."""
        return self._context.rank

    def set_global_rank(self, rank: int) -> None:
        """Refuse another rank than the agent gave."""
        assert rank == self._context.rank

    def local_rank(self) -> int:
        """Rank among those of the node."""
        return self._context.local_rank

    def node_rank(self) -> int:
        """Which node."""
        return self._context.node_rank
