def test_four_nodes_are_idle(slurm):
    assert slurm.node_states() == dict.fromkeys(slurm.nodes, "idle")
