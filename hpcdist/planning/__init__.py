"""`hpcdist plan`: when a job would start, how long it takes, whether it fits, and what it costs."""
