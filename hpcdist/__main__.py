"""`python -m hpcdist` is the command `hpcdist`."""

import sys

from hpcdist.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
