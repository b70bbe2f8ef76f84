"""From the records of one run to its figures."""
