"""Installing hpcdist at a host: what runs here is copied there, beside a virtual environment with
what it needs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from hpcdist.base.errors import HpcdistError, UserError
from hpcdist.base.needs import OLDEST
from hpcdist.base.text import one_line
from hpcdist.cluster.host import Host
from hpcdist.remote.command import START_FILE, quoted
from hpcdist.remote.ssh import Connection

_LIBRARY = f"{START_FILE.rpartition('/')[0]}/lib"
_SHIPPED = ("hpcdist", "jobs", "templates", "course", "examples", "docs/terms")
_PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(15, 9, -1)), "python")
_NO_PYTHON = 9
_SCRIPT = """\
exec 5>&1 >&2
fail() {{ echo "$1" >&5; exit 1; }}
{load}
oldest='import sys, venv, ensurepip; sys.exit(sys.version_info < {oldest})'
version='import sys; print("%d.%d.%d" % sys.version_info[:3])'
python= seen=
for each in {pythons}; do
    seen="$seen $each $("$each" -c "$version" 2>&1 | tail -n 1)"
    if "$each" -c "$oldest" 2>/dev/null; then python=$each; break; fi
done
if [ -z "$python" ]; then
    modules=$(module -t avail 2>&1 | grep -i '^python' | tail -n 5 | tr '\\n' ' ')
    echo "there is${{seen:- none}}${{modules:+; modules: $modules}}" >&5
    exit {no_python}
fi
home="$HOME/{library}/.."
venv={venv}
if ! "$venv/bin/python" -c "$oldest" 2>/dev/null; then
    if [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
        fail "$venv is not empty, and no virtual environment"  # --clear would remove it all
    fi
    "$python" -m venv --clear "$venv" || fail "the virtual environment $venv cannot be made"
fi
venv=$(cd "$venv" && pwd)
"$venv/bin/python" -m pip --disable-pip-version-check install {needs} || fail "pip failed"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$HOME/{library}" >"$packages/hpcdist.pth" || fail "$packages cannot be written"
cat >"$HOME/{start}.new" <<END || fail "$HOME/{start} cannot be written"
#!/bin/bash{login}
{load}
exec "$venv/bin/python" -m hpcdist "\\$@"
END
chmod 700 "$HOME/{start}.new"
got=$("$HOME/{start}.new" --version 2>&1) || fail "it does not start: $(echo "$got" | tail -n 1)"
mv "$HOME/{start}.new" "$HOME/{start}"
echo "$(echo "$got" | tail -n 1) with Python $("$venv/bin/python" -c "$version") in $venv" >&5
"""


def install(host: Host, *, python: str | None, load: Sequence[str], venv: str | None) -> str:
    """Install hpcdist at a host and return what was done there, in words.

    `python` is None for the first of the usual names that is new enough, `venv` for a folder
    beside the script that starts hpcdist; `load` are lines of bash before each start. What pip
    says appears on stderr. Raises UserError where there is no Python that will do.
    """
    try:
        needs = metadata.distribution("hpcdist").requires or []
    except metadata.PackageNotFoundError:
        raise UserError(
            "hpcdist is not installed here, so that it is not known what it needs",
            hint="install it here with pip, from its wheel or its folder",
        ) from None
    script = _SCRIPT.format(
        load="\n".join(load),
        login=" -l" if load else "",
        oldest=OLDEST,
        pythons=shlex.join([python] if python else _PYTHONS),
        no_python=_NO_PYTHON,
        library=_LIBRARY,
        start=START_FILE,
        venv=quoted(venv) if venv else '"$home/venv"',
        needs=shlex.join(need for need in needs if "extra ==" not in need),
    )
    # As it lies here: in a checkout what is shipped stands beside the package, else within.
    package = Path(__file__).parents[1]
    shipped = [name for name in _SHIPPED[1:] if not (package / name).is_dir()]
    folders = [f"{package.parent}/./{name}" for name in ("hpcdist", *shipped)]
    with Connection(host) as connection:
        connection.copy(
            [
                *("-rtR", "--delete", "--exclude=__pycache__", "--chmod=D700,F600"),
                f"--rsync-path=cd; umask 077; mkdir -p {_LIBRARY} && rsync",
                *folders,
                f"{host.name}:{_LIBRARY}/",
            ]
        )
        code, out = connection.call(script, is_captured=True)
    said = one_line(out.decode(errors="replace").strip())
    if code == 0:
        return said
    if code == _NO_PYTHON:
        raise UserError(
            f"{host.name} has no Python {OLDEST[0]}.{OLDEST[1]} or newer with venv; {said}",
            hint="load one: --load 'module load python3/3.11', or name one: --python FILE",
        )
    raise HpcdistError(
        f"hpcdist was not installed at {host.name}: {said or 'see above'}",
        hint="where the disk is full or home is small, --venv names another folder",
    )
