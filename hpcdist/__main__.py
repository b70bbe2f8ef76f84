"""`python -m hpcdist` is the command `hpcdist`, whose modules take a tenth of a second to import:
Ctrl-C ends that without a traceback, too."""

import sys


def main() -> int:
    """Run the command and return its exit code."""
    try:
        from hpcdist.cli.main import main as run
    except KeyboardInterrupt:
        return 130  # hpcdist.base.errors may not be there yet
    return run()


if __name__ == "__main__":
    sys.exit(main())
