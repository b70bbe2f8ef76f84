"""The script's folder has modules by names that others have, too: its own come first."""

import json
import os

found = {}
for name in (
    "cloudpickle",
    "msgspec",
    "platform",
    "queue",
    "resource",
    "secrets",
    "statistics",
    "yaml",
):
    found[name] = hasattr(__import__(name), "IS_OWN")
with open(f"facts-{os.environ['RANK']}.json", "w") as file:
    json.dump(found, file)
