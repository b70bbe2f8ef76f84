"""A call of a command, and its answer."""

from dataclasses import dataclass

from lsf_site.errors import RefusedError


@dataclass(frozen=True, kw_only=True)
class Call:
    """What somebody typed, and where."""

    name: str
    words: list
    cwd: str
    environment: dict
    files: tuple = ()
    """Of blaunch: its three standard files."""
    input: str | None = None
    """None before it has been asked for."""
    passes_input: bool = True

    @classmethod
    def parse(cls, text, files):
        name, cwd, count, *rest = text.split("\0")
        words, variables = rest[: int(count)], rest[int(count) :]
        return cls(
            name=name,
            cwd=cwd,
            words=words,
            environment=dict(one.split("=", 1) for one in variables if "=" in one),
            files=files,
        )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command prints, and its return code."""

    out: str = ""
    err: str = ""
    code: int = 0
    wants_input: bool = False
    """Nothing of the above yet: the command's standard input first."""


def split_options(words, *, with_value=(), flags=(), usage):
    """({option: value or True}, the rest); options may stand between the rest."""
    options, rest, left = {}, [], list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            rest.append(word)
        elif word[1:] in flags:
            options[word[1:]] = True
        elif word[1:] in with_value and left:
            options[word[1:]] = left.pop(0)
        else:
            raise RefusedError(f"{usage.split()[0]}: illegal option -- {word[1:]}\nUsage: {usage}")
    return options, rest
