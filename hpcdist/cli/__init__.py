"""The command line: one module per verb, its options and handler together."""
