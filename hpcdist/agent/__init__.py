"""The programs on the nodes: the agent, the ranks that it forks, and the verdict on their end."""
