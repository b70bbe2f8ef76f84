"""torchelastic's @record, whose traceback stands in the file that it is told of."""

import os
import sys
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        if sys.argv[1] == "raises":
            raise ValueError("of the recorded function")
        try:
            raise KeyError("of the recorded function")
        except KeyError:
            sys.exit(4)
    time.sleep(600)


@record
def raises():
    raise ValueError("of the recorded function")


if __name__ == "__main__":
    if sys.argv[1] == "exits" and os.environ["RANK"] == "1":
        try:
            raises()
        except ValueError:
            sys.exit(4)
    main()
