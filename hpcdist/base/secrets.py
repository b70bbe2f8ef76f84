"""Keep the environment variables that results depend on, and no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_KEPT = re.compile(
    r"^(?:"
    r"(?:OMP|MKL|OPENBLAS|KMP|GOMP|CUDA|NCCL|GLOO|TORCH|TORCHELASTIC|PYTORCH|SLURM|LSB|LSF|LS|CONDA"
    r"|HPCDIST)_\w+"
    r"|PATH|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHASHSEED|VIRTUAL_ENV|HOSTNAME|LANG|LC_ALL|TZ"
    r"|LOADEDMODULES|MODULEPATH"
    r")$"
)
_SECRET = re.compile(
    r"token|secret|passw|passphrase|passwd|api_?key|access_?key|private|credential|auth|cookie"
    r"|session|jwt|signature|_key$|_pwd$|(?:^|_)pat$",
    re.IGNORECASE,
)
_PASSWORD_IN_URL = re.compile(r"(\w+://)[^/\s]*@")  # or a token in the place of user and password
_HARMLESS = re.compile(r"(?:[~/$`].*|true|false|yes|no|on|off|\d{1,6})?", re.IGNORECASE | re.DOTALL)
"""Values that are no secret whatever their name: TOKENIZERS_PARALLELISM=false, the path of a file
with a token, and what bash computes when the job runs."""


HIDDEN = "***"


def looks_secret(name: str, value: str) -> bool:
    """Return True if a variable or an option seems to hold a password, a token or the like."""
    if _PASSWORD_IN_URL.search(value):
        return True
    return bool(_SECRET.search(name.replace("-", "_"))) and not _HARMLESS.fullmatch(value)


def without_passwords(text: str) -> str:
    """A text, without the user and password of addresses in it."""
    return _PASSWORD_IN_URL.sub(r"\1***@", text)


def redact(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables worth keeping; those that may hold a secret are left out altogether."""
    return {
        name: without_passwords(value)
        for name, value in sorted(environment.items())
        if _KEPT.match(name) and not _SECRET.search(name)
    }


def starred_args(args: Sequence[str]) -> list[str]:
    """Star out what looks like a secret in arguments: both `--token=x` and `--token x`."""
    starred, before = [], ""
    for arg in args:
        name, equals, value = arg.partition("=")
        is_value = before.startswith("-") and "=" not in before and not arg.startswith("-")
        if equals and looks_secret(name, value):
            starred.append(f"{name}={HIDDEN}")
        elif looks_secret(before if is_value else "", arg):
            starred.append(HIDDEN)
        else:
            starred.append(arg)
        before = arg
    return starred
