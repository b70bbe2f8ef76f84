"""From a laptop: the same commands at a login node, over the user's own ssh.

`ssh` connects, `call` runs a command there, which `serve` starts, `tree` sends the work tree,
`bring` downloads what summaries need, and `install` sets hpcdist up at the host.
"""
