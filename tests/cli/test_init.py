"""`hpcdist init` makes what runs as it is."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_script_is_the_example_and_nothing_is_overwritten(hpcdist):
    done = hpcdist("init")
    assert done.stdout == "train.py\n"
    assert "hpcdist submit train.py --gpus 2 --local" in done.stderr
    made = (hpcdist.folder / "train.py").read_text()
    example = (ROOT / "examples" / "ddp_digits.py").read_text()
    assert made == example.replace("examples/ddp_digits.py", "train.py")
    again = hpcdist("init")
    assert again.returncode == 2
    assert "train.py exists already, and was not changed" in again.stderr
    bad = hpcdist("init", "../x")
    assert bad.returncode == 2
    assert "NAME is '../x'" in bad.stderr
