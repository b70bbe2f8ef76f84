"""Print the oldest versions that setup.cfg allows, as constraints of pip: `make floor`."""

import configparser
import re
from pathlib import Path

_SETUP = Path(__file__).resolve().parent.parent / "setup.cfg"
_REQUIREMENT = re.compile(r"(?P<name>[\w-]+)>=(?P<version>[\d.]+)")


def main() -> None:
    setup = configparser.ConfigParser()
    setup.read(_SETUP)
    for line in setup["options"]["install_requires"].split("\n"):
        if found := _REQUIREMENT.match(line):
            parts = found["version"].split(".")
            if len(parts) == 1:
                parts.append("0")
            # The newest mend of a minor version: first releases are often withdrawn.
            print(f"{found['name']}=={'.'.join(parts)}{'.*' if len(parts) == 2 else ''}")


if __name__ == "__main__":
    main()
