"""Print constraints.txt: the installed versions of all that hpcdist and its tests need."""

import platform
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEAD = """\
# The versions that the whole suite passed on, with Python {python}: `make constraints` writes them.
# Use them by: pip install -c constraints.txt . An older Python, which lacks some, is not bound."""


def add_needed(found: dict[str, str], name: str, extra: str) -> None:
    """Add name -> version of all that a package needs with an extra."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        key = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        if key not in found:
            try:
                found[key] = distribution(key).version
            except PackageNotFoundError:
                continue
            for inner in ["", *requirement.extras]:
                add_needed(found, key, inner)
    return found


def main() -> None:
    """Print the file."""
    versions: dict[str, str] = {}
    add_needed(versions, "hpcdist", "test")
    minor = ".".join(platform.python_version_tuple()[:2])
    print(HEAD.format(python=platform.python_version()))
    for name, version in sorted(versions.items()):
        print(f'{name}=={version.partition("+")[0]} ; python_version >= "{minor}"')


if __name__ == "__main__":
    main()
