"""The process that starts both commands, and the table that `make foreign` prints."""

import pytest
from foreign.running import Launchers


@pytest.fixture(scope="session")
def launchers(lasting_process):
    with Launchers() as started:
        lasting_process(started.process.pid)
        yield started


def pytest_terminal_summary(terminalreporter, config):
    if "foreign" not in config.option.markexpr.replace("not foreign", ""):
        return
    lines = []
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            said = dict(report.user_properties)
            if "program" in said:
                lines.append((said, "equal" if outcome == "passed" else "NOT EQUAL"))
            elif outcome == "skipped" and "foreign" in report.nodeid:
                reason = report.longrepr[2].removeprefix("Skipped: ")
                name = report.nodeid.partition("[")[2].rstrip("]")
                lines.append(({"program": name, "compared": reason}, "skipped"))
    if not lines:
        return
    terminalreporter.section("programs under torchrun and under hpcdist")
    widths = "{:<34} {:>8} {:>7}  {:<9}  {}"
    head = widths.format("program", "torchrun", "hpcdist", "", "compared")
    terminalreporter.write_line(head)
    for said, word in lines:
        codes = [str(said.get(name, "-")) for name in ("torchrun", "hpcdist")]
        terminalreporter.write_line(
            widths.format(said["program"], *codes, word, said["compared"]).rstrip()
        )
