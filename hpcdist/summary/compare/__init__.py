"""From the figures of runs to groups, speed-ups, shares of time and advice."""
