"""`hpcdist serve`: the host's side of `--host`, which ssh starts there."""

from __future__ import annotations

import click


@click.command(hidden=True)
def serve() -> int:
    """Run a command for a laptop, which says by stdin what it wants."""
    from hpcdist.cli.main import main
    from hpcdist.remote.serve import serve as serve_laptop

    return serve_laptop(main)
