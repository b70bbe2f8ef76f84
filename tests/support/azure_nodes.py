"""Nodes of an Azure job: hosts in network namespaces, and a mount that behaves badly.

Each node has a folder of its own as its mount. What it has written there for a while appears in the
storage, whole; what other nodes write it never sees, as Azure's mounts keep what they once knew.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_SETTLED_S = 0.3
_NETWORK = """
set -e
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
echo ready
exec sleep 600
"""
_NODE = """
set -e
hostname "$1"; address="$2"; shift 2
read -r go
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
exec "$@"
"""
_AS_ROOT = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
_ENTER = [] if os.getuid() == 0 else ["--user", "--preserve-credentials"]


class Network:
    """Hosts 10.78.0.N on a bridge of their own."""

    def __init__(self):
        self._bridge = subprocess.Popen(
            ["unshare", *_AS_ROOT, "--net", "--uts", "sh", "-c", _NETWORK],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if self._bridge.stdout.readline() != b"ready\n":
            raise OSError(self._bridge.stderr.read().decode())
        self.pid = self._bridge.pid
        self._links = 0

    def start(self, number, words, **options):
        """Start a command on host N; it is this process, whatever it became before."""
        place = [f"node{number}", self.address(number)]
        inside = ["nsenter", f"--target={self._bridge.pid}", *_ENTER, "--net", "--uts"]
        host = ["unshare", "--net", "--uts", "sh", "-c", _NODE, "sh", *place, *words]
        process = subprocess.Popen([*inside, *host], stdin=subprocess.PIPE, **options)
        own = os.readlink(f"/proc/{self._bridge.pid}/ns/net")
        first = os.readlink("/proc/self/ns/net")
        while (found := os.readlink(f"/proc/{process.pid}/ns/net")) in {own, first}:
            assert process.poll() is None, found
            time.sleep(0.01)
        self._links += 1
        link = f"link{self._links}"
        for arguments in (
            f"link add {link} type veth peer name eth0 netns {process.pid}",
            f"link set {link} master br0 up",
        ):
            subprocess.run([*inside, "ip", *arguments.split()], check=True, timeout=20)
        process.stdin.write(b"go\n")
        process.stdin.close()
        return process

    @staticmethod
    def address(number):
        return f"10.78.0.{number + 1}"

    def close(self):
        self._bridge.kill()
        self._bridge.wait()
        self._bridge.stdout.close()
        self._bridge.stderr.close()


class Storage:
    """The container of blobs behind the mounts."""

    def __init__(self, folder):
        self.folder = folder / "storage"
        self.folder.mkdir()
        self._mounts = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def mount(self, folder):
        """Make a mount: it has what the storage has now."""
        with self._lock:
            shutil.copytree(self.folder, folder)
            self._mounts[folder] = self._files_of(folder)
        return folder

    def lose(self, folder):
        """The node is gone: what had not been brought to the storage is lost."""
        with self._lock:
            del self._mounts[folder]
        shutil.rmtree(folder)

    def close(self):
        self._is_over.set()
        self._thread.join()

    def settle(self):
        """Bring everything that the living nodes have written."""
        self._bring(settled_s=0.0)

    def _run(self):
        while not self._is_over.wait(0.1):
            self._bring(settled_s=_SETTLED_S)

    def _bring(self, *, settled_s):
        with self._lock:
            for mount, known in self._mounts.items():
                found = self._files_of(mount)
                for name, changed_s in found.items():
                    if changed_s != known.get(name) and time.time() - changed_s >= settled_s:
                        target = self.folder / name
                        target.parent.mkdir(parents=True, exist_ok=True)
                        with suppress(FileNotFoundError):
                            shutil.copyfile(mount / name, f"{target}.new")
                            os.replace(f"{target}.new", target)
                            known[name] = changed_s
                for name in known.keys() - found.keys():
                    (self.folder / name).unlink(missing_ok=True)
                    del known[name]

    @staticmethod
    def _files_of(mount):
        """Return when each file was written or renamed."""
        found = {}
        for path in mount.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    found[path.relative_to(mount).as_posix()] = path.stat().st_ctime
        return found


class AzureJob:
    """One job: its code, and the nodes of each of its lives."""

    def __init__(self, folder, network, storage, run, *, script, key="5a" * 32):
        """`run` is the run directory at home."""
        self.folder, self.network, self.storage = folder, network, storage
        self.nodes = {}
        self._life = 0
        self.code = folder / "code"
        (self.code / "run").mkdir(parents=True)
        (self.code / "snapshot").mkdir()
        shutil.copy(run.spec_file, self.code / "run")
        (self.code / "run" / "meeting.key").write_text(key)
        (self.code / "snapshot" / "train.py").write_text(script)

    def start_node(self, node, *, num_nodes=2, key=None, **variables):
        """Start one process on a node, with exactly the variables that Azure gives it."""
        place = self.folder / f"life-{self._life}-node-{node}"
        place.mkdir()
        code = self.code
        if key is not None:
            code = place / "code"
            shutil.copytree(self.code, code)
            (code / "run" / "meeting.key").write_text(key)
        (place / "disk").mkdir()
        mount = self.storage.mount(place / "mount")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "HPCDIST_TEST_MARK": os.environ["HPCDIST_TEST_MARK"],
            "TMPDIR": str(place / "disk"),
            "MASTER_ADDR": self.network.address(0),
            "MASTER_PORT": "6105",
            "WORLD_SIZE": str(num_nodes),
            "NODE_RANK": str(node),
            "RANK": str(node),
            "LOCAL_RANK": "0",
            **variables,
        }
        words = [sys.executable, "-u", "-m", "hpcdist.schedulers.azure.node", str(mount)]
        with (place / "log").open("wb") as log:
            process = self.network.start(
                node, words, cwd=code, env=environment, stdout=log, stderr=log
            )
        self.nodes[node] = (process, mount, place)
        return process

    def log(self, node):
        return (self.nodes[node][2] / "log").read_text()

    def lose_node(self, node):
        """Take a node away at once, as Azure takes a low-priority node."""
        process, mount, _ = self.nodes.pop(node)
        process.kill()
        process.wait()
        self.storage.lose(mount)

    def end(self):
        """Wait for all nodes of this life; their exit codes by node."""
        codes = {node: process.wait(60) for node, (process, *_) in self.nodes.items()}
        self.storage.settle()
        self.nodes.clear()
        self._life += 1
        return codes

    def close(self):
        for process, *_ in self.nodes.values():
            process.kill()
            process.wait()
