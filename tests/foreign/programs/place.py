import importlib
import json
import os
import sys

main = sys.modules["__main__"]
facts = {
    "argv": sys.argv,
    "file": __file__,
    "name": __name__,
    "package": __package__,
    "spec": __spec__ and [__spec__.name, __spec__.origin, __spec__.parent],
    "loader": type(__loader__).__name__,
    "path": sys.path[0],
    "is main": main.__dict__ is globals(),
    "cached": bool(__cached__) if "__cached__" in globals() else "none",
}
try:
    from . import sibling

    facts["sibling"] = sibling.NAME
except ImportError as error:
    facts["sibling"] = str(error)
try:
    import beside

    facts["beside"] = beside.NAME
except ImportError as error:
    facts["beside"] = str(error)
for name in ("msgspec", "queue", "secrets"):  # hpcdist has imported those of others
    facts[name] = hasattr(importlib.import_module(name), "IS_OWN")
with open(f"facts-{os.environ['RANK']}.json", "w") as file:
    json.dump(facts, file)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
