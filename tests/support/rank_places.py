"""Places of ranks in runs on CPUs, and where these meet."""

from hpcdist.agent.node import RankMeeting, rank_environment
from hpcdist.rank.context import RankPlace

MEETING = RankMeeting(
    attempt=0,
    restart_count=0,
    master_addr="127.0.0.1",
    master_port=20000,
    device="cpu",
    backend="gloo",
    nodes=(0,),
)


def place(*, nodes=1, ranks_per_node=1, rank=0):
    return RankPlace(
        rank=rank,
        local_rank=rank % ranks_per_node,
        world_size=nodes * ranks_per_node,
        local_world_size=ranks_per_node,
        node_rank=rank // ranks_per_node,
        num_nodes=nodes,
        host="h",
        device="cpu",
        backend="gloo",
        attempt=0,
        restart_count=0,
        cpus=(0,),
        num_cpus=1,
        num_threads=1,
    )


def environment_of(rank_place, *, interface="lo"):
    return rank_environment(rank_place, MEETING, run_id="run", max_restarts=0, interface=interface)
