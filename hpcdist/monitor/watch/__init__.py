"""What `hpcdist watch` shows: runs that wait, run and have ended, read again and again.

One way through: event_tail (what is new in a file), running (a run's ranks), board (all runs and
their ends), frame (lines of text) and live (the terminal, the only module that imports rich).
"""
