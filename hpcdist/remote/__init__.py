"""From a laptop: the same commands at a login node, over the user's own ssh.

`ssh` connects, `wire` has the messages and their frames, `serve` is the host's side, `call` the
laptop's, `tree` brings the work tree there, `bring` brings home what summaries need, and `install`
sets hpcdist up at the host.
"""
