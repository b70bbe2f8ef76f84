"""A child made by os.fork fails, and then the rank fails for another reason."""

import os
import sys
import time

if os.environ["RANK"] == "0":
    time.sleep(600)
pid = os.fork()
if not pid:
    if sys.argv[1] == "raises":
        raise ValueError("in the child")
    sys.exit(5)
os.waitpid(pid, 0)
sys.exit(7)
