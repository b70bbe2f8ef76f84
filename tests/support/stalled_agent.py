"""An agent whose loop hangs in a file, as in a mount whose server is away."""

from hpcdist.agent.member import Member


def stall_0():
    _stall(0)


def stall_1():
    _stall(1)


def _stall(node):
    """A change: once there is a pipe `stalled` in the run's folder, a node's agent waits for it."""
    ticks = Member._tick

    def tick(member):
        pipe = member._run.path / "stalled"
        if member._node.place.node_rank == node and pipe.exists():
            pipe.read_bytes()
        ticks(member)

    Member._tick = tick
