"""A child forked by os.fork runs on above its fork, as a careless script's does, and fails."""

import os
import sys
import time

rank = os.environ["RANK"]
pid = os.fork()
if not pid:
    if sys.argv[1] == "raises":
        raise ValueError("in the child")
    sys.exit(5)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
time.sleep(0.2)
with open(f"child-{rank}", "w") as file:
    file.write(str(status))
