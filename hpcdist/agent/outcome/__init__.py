"""How an attempt ended: which rank failed first, and what follows from it."""
