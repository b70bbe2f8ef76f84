"""What runs on the nodes: the agent, the ranks it forks, and the verdict on how they ended."""
