"""From a laptop: the same commands at a login node, over the user's own ssh.

`ssh` connects, `command` runs a verb there with the work tree, and `bring` downloads what summaries
need.
"""
