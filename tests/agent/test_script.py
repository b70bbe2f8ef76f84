"""A script runs in a rank as `python script.py args` would run it."""


def test_what_python_does_for_a_script_is_done(launch, write_script):
    """An import it can do without is left to it, and it may call itself as deeply."""
    write_script("raise ImportError('broken here')", "pandas.py")
    script = write_script(
        "import sys\n"
        "def count(depth=2):\n"  # the module's frame is the first
        "    try:\n        return count(depth + 1)\n"
        "    except RecursionError:\n        return depth\n"
        "try:\n    import PIL.not_there\nexcept ImportError:\n    print('without')\n"
        "try:\n    import pandas\nexcept ImportError as error:\n    print(error)\n"
        "print(count() >= 1000, sys.stdin.name, sys.stdout.name, sys.stderr.name)\n"
        "sys.__stdout__.write('as ever\\n')\n"
        "sys.exit(False)"
    )
    launched = launch(script)
    assert launched.verdict().kind == "done"
    streams = "True <stdin> <stdout> <stderr>"
    assert launched.log(0).splitlines() == ["without", "broken here", streams, "as ever"]


def test_modules_of_the_users_folder_do_not_shadow_those_of_the_agent(
    submit, write_script, tmp_path, monkeypatch
):
    for name in ("random", "queue", "socket", "json", "torch", "submitit", "hpcdist"):
        write_script("raise SystemExit('the wrong one')", f"{name}.py")
    monkeypatch.chdir(tmp_path)
    script = write_script("import os\nprint(os.getcwd())", "code/script.py")
    launched = submit(script, nodes=2)
    assert launched.verdict().kind == "done", launched.everything_said()
    assert launched.logs() == [f"{tmp_path}\n"] * 2
