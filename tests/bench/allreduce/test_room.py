"""Memory for the buffers: what is shared by whom, and which sizes fit."""

from hpcdist.machine.host_memory import (
    free_host_bytes,
    largest_buffer,
    machine_id,
    split_by_room,
)


def test_ranks_of_one_machine_share_half_of_what_is_free():
    assert largest_buffer(8e9, num_sharing=4, limit_bytes=None, num_in_limit=2) == 1e9


def test_the_job_s_own_limit_holds_for_the_ranks_of_a_node():
    assert largest_buffer(8e9, num_sharing=4, limit_bytes=2e9, num_in_limit=2) == 0.5e9


def test_sizes_are_split_in_their_order():
    assert split_by_room([4, 64, 16], 16) == ([4, 16], [64])


def test_this_machine_has_a_name_and_some_memory():
    assert machine_id() == machine_id() != ""
    assert free_host_bytes() > 0
