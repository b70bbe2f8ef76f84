"""Installing hpcdist at a host: a wheel of what runs here goes there, and a script that makes a
virtual environment for it, in one connection."""

from __future__ import annotations

import base64
import hashlib
import io
import secrets
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from hpcdist.base.errors import HpcdistError, UserError
from hpcdist.base.files import shipped_folder
from hpcdist.base.needs import OLDEST
from hpcdist.base.text import one_line
from hpcdist.base.version import __version__
from hpcdist.cluster.host import Host
from hpcdist.remote.ssh import LOST, START_FILE, Connection

_WHEEL = f"hpcdist-{__version__}-py3-none-any.whl"
_WHEEL_TEXT = """\
Wheel-Version: 1.0
Generator: hpcdist
Root-Is-Purelib: true
Tag: py3-none-any
"""
_MOST_LINE_BYTES = 1 << 16
"""A longer one is shown in pieces."""
_PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(15, 9, -1)), "python")
_RECEIVE = (
    'umask 077; d="$(mktemp -d)" || exit 1; cd "$d" && tar xf - && bash -l ./install.sh "$0"; '
    'c="$?"; cd /; rm -rf "$d"; exit "$c"'
)
"""A script for bash, as `hpcdist.remote.ssh` starts it."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The user's wishes for the installation."""

    python: str | None = None
    """None: the first of the usual names that is new enough."""
    load: Sequence[str] = ()
    """Lines of bash before each start, such as module load."""
    venv: str | None = None
    """None: beside the script that starts hpcdist."""
    wheels: Path | None = None
    """A folder with wheels of all that hpcdist needs; None: pip's index there."""
    sees_site_packages: bool = False


def install(host: Host, wishes: Wishes) -> str:
    """Install hpcdist at a host and return what was done there, in words.

    What pip says appears on stderr. Raises UserError where there is no Python that will do.
    """
    word = secrets.token_hex(8)
    with tempfile.TemporaryFile() as archive:
        _pack(archive, wishes)
        archive.seek(0)
        with Connection(host) as connection:
            argv = connection.command(f"exec bash -lc '{_RECEIVE}' {word}")
            with subprocess.Popen(argv, stdin=archive, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                told = dict(_told(process.stdout, word))
    if "done" in told:
        return one_line(told["done"])
    if "python" in told:
        raise UserError(
            f"{host.name} has no Python {OLDEST[0]}.{OLDEST[1]} or newer with venv; there is "
            f"{one_line(told['python']) or 'none'}",
            hint=_python_hint(told.get("modules", "")),
        )
    if process.returncode == LOST:
        raise connection.unreached()
    raise HpcdistError(
        f"hpcdist was not installed at {host.name}: {told.get('failed', 'see above')}",
        hint="where the disk is full or home is small, --venv names another folder; where no index "
        "of packages is reached, --wheels a folder with wheels here",
    )


def _python_hint(modules: str) -> str:
    names = modules.split()
    example = names[-1] if names else "python3/3.11"
    listed = f"; modules there: {', '.join(map(one_line, names))}" if names else ""
    return f"load one: --load 'module load {example}', or name one: --python FILE{listed}"


def _told(lines: IO[bytes], word: str) -> Iterator[tuple[str, str]]:
    """Give what the script tells, and show the rest."""
    for line in iter(lambda: lines.readline(_MOST_LINE_BYTES), b""):
        text = line.decode(errors="replace").rstrip("\n")
        key, colon, value = text.removeprefix(f"hpcdist:{word}:").partition(":")
        if colon and text.startswith(f"hpcdist:{word}:"):
            yield key, value
        else:
            print(one_line(text), file=sys.stderr, flush=True)


def _pack(archive: IO[bytes], wishes: Wishes) -> None:
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, "install.sh", _script(wishes).encode())
        _add(tar, _WHEEL, make_wheel())
        if wishes.wheels is not None:
            wheels = sorted(wishes.wheels.glob("*.whl"))
            if not wheels:
                raise UserError(
                    f"{wishes.wheels} has no wheels",
                    hint="fill it where there is an index, on a machine like the host: "
                    "pip download -d DIR torch torchvision ...",
                )
            for wheel in wheels:
                tar.add(wheel, arcname=f"wheels/{wheel.name}", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    tar.addfile(member, io.BytesIO(content))


def _script(wishes: Wishes) -> str:
    load = "\n".join(wishes.load)
    pythons = [wishes.python] if wishes.python else _PYTHONS
    venv = _home_path(wishes.venv) if wishes.venv else '"$home/venv"'
    site = " --system-site-packages" if wishes.sees_site_packages else ""
    index = " --no-index --find-links wheels" if wishes.wheels is not None else ""
    named = shlex.quote(wishes.python or "")
    shebang = "#!/bin/bash -l" if wishes.load else "#!/bin/bash"
    return f"""\
word=$1
tell() {{ echo "hpcdist:$word:$1"; }}
fail() {{ tell "failed:$1"; exit 1; }}
{load}
oldest='import sys, venv, ensurepip; sys.exit(sys.version_info < {OLDEST})'
version='import sys; print("%d.%d.%d" % sys.version_info[:3])'
python= seen= named={named}
for one in {shlex.join(pythons)}; do
    seen="$seen $one $("$one" -c "$version" 2>&1 | tail -n 1)"
    if "$one" -c "$oldest" 2>/dev/null; then python=$one; break; fi
done
if [ -z "$python" ]; then
    tell "modules:$(module -t avail 2>&1 | grep -i '^python' | tail -n 5 | tr '\\n' ' ')"
    tell "python:$seen"
    exit 2
fi
start="{START_FILE}"
home=$(dirname "$start")
mkdir -p "$home" || fail "$home cannot be made"
venv={venv}
cannot="the virtual environment $venv cannot be made"
if ! "$venv/bin/python" -c "$oldest" 2>/dev/null; then
    if [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
        fail "$venv is not empty, and no virtual environment"  # --clear would remove it all
    fi
    "$python" -m venv --clear{site} "$venv" || fail "$cannot"
fi
has=$("$venv/bin/python" -c "$version")
if [ -n "$named" ] && [ "$has" != "$("$python" -c "$version")" ]; then
    fail "$venv has Python $has, and not $named: remove it"
fi
if [ -n "{site}" ] && ! grep -q "site-packages = true" "$venv/pyvenv.cfg"; then
    "$venv/bin/python" -m venv --without-pip{site} "$venv" || fail "$cannot"
fi
venv=$(cd "$venv" && pwd)
pip() {{ "$venv/bin/python" -m pip --disable-pip-version-check install{index} "$@"; }}
pip {_WHEEL} || fail "pip ended with an error"
pip --quiet --no-deps --force-reinstall {_WHEEL} || fail "pip ended with an error"
cat >"$start.new" <<END || fail "$start cannot be written"
{shebang}
{load}
exec "$venv/bin/hpcdist" "\\$@"
END
chmod 700 "$start.new"
got=$("$start.new" --version 2>&1) || fail "it does not start: $(echo "$got" | tail -n 1)"
mv "$start.new" "$start" || fail "$start cannot be written"
tell "done:$(echo "$got" | tail -n 1) with Python $("$venv/bin/python" -c "$version") in $venv"
"""


def _home_path(path: str) -> str:
    """Return a path for bash, of which ~ is the home there."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def make_wheel() -> bytes:
    """Return a wheel of the hpcdist that runs here, from a checkout as from an installation."""
    package = Path(__file__).parents[1]
    contents = {f"hpcdist/{path.relative_to(package)}": path for path in _files(package)}
    for name in ("course", "jobs", "templates"):
        folder = shipped_folder(name)
        contents |= {f"hpcdist/{name}/{path.relative_to(folder)}": path for path in _files(folder)}
    try:
        distribution = metadata.distribution("hpcdist")
    except metadata.PackageNotFoundError:
        raise UserError(
            "hpcdist is not installed here, so that it is not known what it needs",
            hint="install it here with pip, from its wheel or its folder",
        ) from None
    info = f"hpcdist-{__version__}.dist-info"
    texts = {
        f"{info}/METADATA": distribution.read_text("METADATA") or "",
        f"{info}/entry_points.txt": distribution.read_text("entry_points.txt") or "",
        f"{info}/WHEEL": _WHEEL_TEXT,
    }
    contents_of = {name: path.read_bytes() for name, path in sorted(contents.items())}
    contents_of |= {name: text.encode() for name, text in texts.items()}
    buffer, record = io.BytesIO(), []
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in contents_of.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            record.append(f"{name},sha256={digest.rstrip('=')},{len(content)}")
            wheel.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        lines = "\n".join([*record, f"{info}/RECORD,,"])
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), f"{lines}\n")
    return buffer.getvalue()


def _files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
