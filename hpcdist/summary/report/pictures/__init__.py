"""The summary as pictures: which there are, and how each is drawn.

`catalogue` says which pictures the figures of a summary allow, `series` reads again what only
pictures need of the events, the other modules each draw one, and `files` writes them. They import
matplotlib where they use it, and no window system.
"""
