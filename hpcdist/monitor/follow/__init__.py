"""Following a run while it goes on: its ranks' output, live progress, and its end."""
