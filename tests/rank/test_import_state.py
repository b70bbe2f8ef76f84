"""What libraries set up when they are imported: each rank of each attempt has its own.

More of them: tests/foreign/programs/random_numbers.py.
"""

import json

SCRIPT = """
import torch.utils.data
import importlib, json, multiprocessing, os, random, signal, sys
from pathlib import Path

numpy, torch = (importlib.import_module(name) for name in ("numpy", "torch"))
loader = torch.utils.data.DataLoader(range(64), batch_size=64, shuffle=True)
drawn = {
    "torch": torch.rand(4).tolist(),
    "shuffled": next(iter(loader)).tolist(),
    "numpy": numpy.random.rand(4).tolist(),
    "random": random.random(),
    "authkey": multiprocessing.current_process().authkey.hex(),
    "seeded": [torch.manual_seed(7).initial_seed(), torch.rand(4).tolist()],
}
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
folder = Path(sys.argv[1])
(folder / f"{attempt}-{rank}.part").write_text(json.dumps(drawn))
(folder / f"{attempt}-{rank}.part").rename(folder / f"{attempt}-{rank}.json")
if attempt == "0":
    while len(list(folder.glob("0-*.json"))) < int(os.environ["WORLD_SIZE"]):
        pass
    if rank != "0":
        signal.pause()
    sys.exit(1)
"""


def test_ranks_and_attempts_draw_numbers_of_their_own(launch, write_script, tmp_path):
    (tmp_path / "drawn").mkdir()
    launched = launch(write_script(SCRIPT), tmp_path / "drawn", nodes=2, max_restarts=1)
    assert launched.verdict().kind == "done", launched.everything_said()
    found = [json.loads(path.read_text()) for path in (tmp_path / "drawn").glob("*.json")]
    assert len(found) == 4
    num_values = {name: len({str(one[name]) for one in found}) for name in found[0]}
    assert num_values.pop("seeded") == 1
    assert set(num_values.values()) == {4}
