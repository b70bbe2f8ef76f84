"""Keep the environment variables that results depend on, and no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

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


def looks_secret(name: str, value: str) -> bool:
    """Return True if a variable seems to hold a password, a token or the like."""
    if _PASSWORD_IN_URL.search(value):
        return True
    return bool(_SECRET.search(name)) and not _HARMLESS.fullmatch(value)


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
