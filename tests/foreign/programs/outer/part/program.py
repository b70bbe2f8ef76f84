"""What a module of a package finds of itself, of its package, and of modules beside that."""

import importlib
import json
import os
import sys

facts = {
    "argv": sys.argv,
    "file": __file__,
    "names": [__name__, __package__, __spec__.name, __spec__.origin, __spec__.parent],
    "loader": type(__loader__).__name__,
    "path": sys.path[0],
    "is main": sys.modules["__main__"].__dict__ is globals(),
    "cached": bool(__cached__) if "__cached__" in globals() else "none",
}
try:
    from . import sibling

    facts["sibling"] = sibling.NAME
except ImportError as error:
    facts["sibling"] = str(error)
for name in ("msgspec", "queue", "secrets"):  # hpcdist has imported those of others
    facts[name] = hasattr(importlib.import_module(name), "IS_OWN")
with open(f"facts-{os.environ['RANK']}.json", "w") as file:
    json.dump(facts, file)
