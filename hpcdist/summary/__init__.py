"""From the events of runs to figures, tables and pictures."""
