"""An empty database of MLflow's: to make its tables takes seconds, to copy them none."""

import shutil
import subprocess
import sys

from made_once import made_once, session_folder

_NAME = "mlflow.db"
_MAKE = """
import sys
from mlflow import MlflowClient
MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}").search_experiments()
"""


def copy_database(to, tmp_path_factory):
    """Put one at this path; it is made once in a session."""

    def fill(folder):
        if "mlflow" in sys.modules:  # its import takes longer than all else
            sys.modules["mlflow"].MlflowClient(f"sqlite:///{folder / _NAME}").search_experiments()
            return
        words = [sys.executable, "-W", "ignore", "-c", _MAKE, _NAME]
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=110)

    made = made_once(session_folder(tmp_path_factory), "mlflow", fill)
    shutil.copy(made / _NAME, to)
