import runpy
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_job_keys_is_the_generated_one():
    done = subprocess.run(
        [sys.executable, DOCS / "generate_job_keys.py"],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert done.stdout == (DOCS / "job-keys.md").read_text()


def test_the_tables_of_exit_codes_states_and_verdicts_are_the_generated_ones():
    page = runpy.run_path(str(DOCS / "generate_exit_codes.py"))["page"]
    text = (DOCS / "exit-codes.md").read_text()
    assert page(text) == text
