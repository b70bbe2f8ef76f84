import subprocess
import sys
from pathlib import Path
from typing import get_args

from hpcdist.base.errors import EXIT_CODES
from hpcdist.cli.explain import meanings
from hpcdist.runs.verdict import Kind, State

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


def test_the_page_explains_each_exit_code_state_and_kind_of_verdict():
    assert meanings("code") == {str(code): words for code, words in EXIT_CODES.items()}
    assert {*meanings("state")} == {*get_args(State)}
    assert {*meanings("kind")} == {*meanings("kind", "what helps")} == {*get_args(Kind)}
