"""What programs print, progress bars above all, as the lines that a terminal would show."""

import re

import pytest

from hpcdist.base.terminal_lines import TerminalLines, last_lines


def lines_of(text, *, size=None, **options):
    """The lines of what is written in pieces of one size."""
    data = text if isinstance(text, bytes) else text.encode()
    live, size = TerminalLines(**options), size or len(data) or 1
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
    lines = [line for piece in pieces for line in live.feed(piece)]
    return [*lines, *live.feed(b"", is_last=True)]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        pytest.param("one\n\ntwo", ["one", "", "two"], id="lines"),
        pytest.param("", [], id="nothing"),
        pytest.param("one\r\ntwo\r\n", ["one", "two"], id="carriage return before newline"),
        pytest.param("\r 10%\r 20%\n", [" 20%"], id="segments that begin with it"),
        pytest.param("\r 50%|####|\r          \rdone\n", ["done"], id="cleared by blanks"),
        pytest.param("\r 50%|####|\x1b[2K\rdone\n", ["done"], id="whole line cleared"),
        pytest.param("blanks  \n", ["blanks  "], id="blanks that nothing was written over"),
        pytest.param("a\x1b]0;title\x07b\x1b[?25lc\x07\x00\x9bd\n", ["abcd"], id="what is unseen"),
        pytest.param("torn \x1b[3", ["torn "], id="unfinished escape"),
        pytest.param(b"\xff\xe9\n", ["\ufffd\ufffd"], id="not UTF-8"),
    ],
)
def test_lines_are_those_that_a_terminal_shows_in_the_end(written, shown):
    assert lines_of(written) == shown
    assert lines_of(written, size=1) == shown


def test_a_bar_above_another_one_is_no_line_wherever_what_is_written_is_split():
    """As tqdm writes a bar below another: it goes down, draws, and goes up again."""
    outer, inner = "\router:  0%|", "\n\rinner: 10%|\x1b[A"
    data = f"{outer}{inner}{inner}\r             \rdone\n{outer}"
    for size in range(1, len(data)):
        assert lines_of(data, size=size) == ["done", "outer:  0%|"], size


ACTING = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;:]*m)")
SEQUENCES = {
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "long clipboard": "\x1b]52;c;" + "A" * 5_000 + "\x07",
    "title": "\x1b]0;evil\x07",
    "title that never ends": "\x1b]0;evil",
    "link": "\x1b]8;;http://evil\x1b\\here\x1b]8;;\x1b\\",
    "question for the terminal": "\x1b[6n\x1b[c\x1bZ",
    "device control": "\x1bP$qm\x1b\\",
    "8-bit controls": "\x9b2J\x9d0;evil\x9c\x90q\x9c\x85\x8d",
    "twice": "\x1b\x1b]0;evil\x07",
    "within another": "\x1b[\x1b]0;evil\x07m",
    "reset": "\x1bc\x1b[!p\x1b[?1049h\x1b[?2004l",
    "bell, and deletion": "\a\x7f\x00",
}


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_no_sequence_but_colours_is_left_however_it_is_split(sequence):
    data = f"before {sequence} after\nlast\n".encode()
    for size in (1, 3, 7, 256, len(data)):
        live = TerminalLines()
        lines, drawn = [], []
        for begin in range(0, len(data), size):
            lines += live.feed(data[begin : begin + size])
            drawn += live.open_lines()
        lines += live.feed(b"", is_last=True)
        assert not ACTING.search("".join([*lines, *drawn])), (size, lines)
        assert "last" in lines[-1]
        assert lines[0].startswith("before ")


def test_colours_stay_with_their_letters_and_end_with_the_line():
    red = "\x1b[31mred\x1b[0m plain\n"
    assert lines_of(red) == ["\x1b[31mred\x1b[0m plain"]
    assert lines_of(red, styled=False) == ["red plain"]
    assert lines_of("\x1b[31ma\nb\x1b[m\n") == ["\x1b[31ma\x1b[0m", "b\x1b[m"]
    assert lines_of("\x1b[31mlong\x1b[0m\rshort\n") == ["short"]
    endless = lines_of("".join(f"\x1b[{code % 8 + 30}m#" for code in range(10_000)))
    assert len(endless[0]) < 1_000_000


def test_a_line_and_a_character_are_open_until_their_ends():
    live = TerminalLines()
    block = "\u2588".encode()
    for written, lines, still_open in (
        (b"\r 10%|" + block[:1], [], [" 10%|"]),
        (block[1:] + b"|\nover\n", [" 10%|\u2588|", "over"], []),
        (b"loading\r 10%", [], [" 10%"]),
        (b"\x1b[K\r 20%\nnext", [" 20%"], ["next"]),
    ):
        assert (live.feed(written), live.open_lines()) == (lines, still_open)
    assert live.feed(b"", is_last=True) == ["next"]
    assert (live.open_lines(), live.feed(b"", is_last=True)) == ([], [])


def test_a_flood_of_segments_ends_in_one_line():
    live = TerminalLines()
    segments = b"".join(b"\r %5d/100000 %s" % (number, b"#" * 60) for number in range(4000))
    assert [live.feed(segments) for _ in range(10)] == [[]] * 10
    assert live.open_lines() == [f"  3999/100000 {'#' * 60}"]


def test_the_last_lines_of_a_log_are_few_and_a_missing_one_has_none(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert last_lines(log, 2) == ["line 99998", "line 99999"]
    assert last_lines(log, 0) == []
    assert last_lines(tmp_path / "missing", 2) == []
