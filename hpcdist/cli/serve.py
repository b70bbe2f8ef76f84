"""`hpcdist serve`: the host's side of `--host`, which ssh starts there."""

from __future__ import annotations

import click


@click.command(hidden=True)
@click.argument("word")
def serve(*, word: str) -> None:
    """Run commands for a laptop, which says by stdin what it wants."""
    from hpcdist.cli.main import main
    from hpcdist.remote.serve import Server

    Server(word, main).serve()
