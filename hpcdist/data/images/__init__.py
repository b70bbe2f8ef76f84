"""Data sets of image files: what is in them, and the way from files to batches."""
