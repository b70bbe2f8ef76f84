"""The outcome of an attempt: which rank failed first, and what follows from it."""
