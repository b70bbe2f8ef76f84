"""A scheduler that hpcdist does not know: jobs are folders on a pile, and nodes are processes."""
