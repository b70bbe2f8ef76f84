"""One node of a job: calls what was piled up for it."""

import os
import pickle
import sys
from pathlib import Path

if __name__ == "__main__":
    task = pickle.loads(Path(os.environ["PILE_JOB"], "task.pkl").read_bytes())
    code = task()
    sys.exit(code if os.environ["PILE_NODE"] == "0" and isinstance(code, int) else 0)
