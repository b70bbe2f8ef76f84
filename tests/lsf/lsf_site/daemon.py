"""The site's one daemon: answers the commands, and starts and ends the jobs.

Called with the site's folder. It ends, with all that it started, at SIGTERM, and when the process
that started it ends.
"""

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import traceback
from collections import Counter
from pathlib import Path

from lsf_site import bjobs, bsub, ends, shown
from lsf_site.batch import Batch
from lsf_site.calls import Answer, Call
from lsf_site.config import SiteConfig
from lsf_site.errors import RefusedError
from lsf_site.launchers import LAUNCHERS
from lsf_site.orders import obey

SOCKET = "socket"
ORDER = "site-order"
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
_COMMANDS = {
    "bsub": bsub.bsub,
    "bjobs": bjobs.bjobs,
    "bkill": ends.bkill,
    "brequeue": ends.brequeue,
    "bstop": ends.bstop,
    "bqueues": shown.bqueues,
    "bhosts": shown.bhosts,
    "bparams": shown.bparams,
}
COMMANDS = tuple(_COMMANDS)
_NOTHING = '{"COMMAND":"bjobs","JOBS":0,"RECORDS":[]}\n'
_CUT_OFF = "System call failed: Network is unreachable\n"


class Connection:
    """One command that waits for its answer."""

    def __init__(self, sock):
        self.sock = sock
        self.data = b""
        self.files = []
        self.call = None

    def read(self):
        """One whole message's text, "" while it is not whole, None at the end."""
        try:
            data, files, *_ = socket.recv_fds(self.sock, 65536, 3)
        except OSError:
            return None
        self.files += files
        if not data:
            return None
        self.data += data
        length = int.from_bytes(self.data[1:5], "little")
        if len(self.data) < 5 or len(self.data) < 5 + length:
            return ""
        text, self.data = self.data[5 : 5 + length], self.data[5 + length :]
        return text.decode(errors="surrogateescape")

    def write(self, kind, text):
        data = text.encode(errors="surrogateescape")
        with contextlib.suppress(OSError):
            self.sock.sendall(kind + len(data).to_bytes(4, "little") + data)

    def close(self):
        self.sock.close()
        self.close_files()

    def close_files(self):
        for file in self.files:
            os.close(file)
        self.files = []


class Daemon:
    """Everything happens in one thread, when something comes in or is due."""

    def __init__(self, folder):
        settings = json.loads((folder / "site.json").read_text())
        self.batch = Batch(
            SiteConfig.from_dict(settings["config"]), folder, settings["login_environment"]
        )
        self.batch.switches = {}
        self.batch.unknown = set()
        self.batch.calls = Counter()
        self.folder = folder
        self.selector = selectors.DefaultSelector()
        self.silenced = []
        self.ends = False

    def run(self):
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(self.folder / "new-socket"))
        server.listen(128)
        os.rename(self.folder / "new-socket", self.folder / SOCKET)  # there once it is ready
        woken, waker = socket.socketpair()
        for one in (woken, waker):
            one.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        self.selector.register(server, selectors.EVENT_READ)
        self.selector.register(woken, selectors.EVENT_READ)
        while not self.ends:
            for key, _ in self.selector.select(self._work()):
                if key.fileobj is server:
                    self._accept(server)
                elif key.fileobj is woken:
                    woken.recv(4096)
                else:
                    self._hear(key.data)
        self.batch.forget_all()

    def _stop(self, *_):
        self.ends = True

    def _work(self):
        """What is due; returns the seconds until the next."""
        self.batch.reap()
        return self.batch.tick()

    def _accept(self, server):
        sock, _ = server.accept()
        self.selector.register(sock, selectors.EVENT_READ, Connection(sock))

    def _hear(self, connection):
        text = connection.read()
        if text is None:
            self._drop(connection)
        elif text or connection.call:
            self._heard(connection, text)

    def _heard(self, connection, text):
        if connection.call is None:
            connection.call = Call.parse(text, tuple(connection.files))
        else:
            call = connection.call
            values = {**call.__dict__, "input": text}
            connection.call = Call(**values)
        # What starts tasks asks the daemons of their hosts, not the one that is down.
        is_served = connection.call.name in (ORDER, *LAUNCHERS)
        if not is_served and self.batch.switches.get("silent"):
            connection.write(b"E", "LSF is down. Please wait ...\n")
            self.silenced.append(connection)
        else:
            self._serve(connection)

    def _serve(self, connection):
        call = connection.call
        if call.name == ORDER:
            connection.write(b"O", json.dumps(obey(json.loads(call.words[0]), self)))
            connection.write(b"R", "0")
            self._drop(connection)
            return
        try:
            answer = self._answer_of(call, connection)
        except RefusedError as error:
            answer = Answer(err=f"{error.text}\n", code=error.code)
        except Exception as error:  # noqa: BLE001  (a fault of the simulation; see Site.restore)
            traceback.print_exc()
            answer = Answer(err=f"the simulated LSF failed: {error!r}\n", code=255)
        if answer is not None:
            self._reply(connection, answer)

    def _answer_of(self, call, connection):
        batch = self.batch
        said = batch.switches.get(f"refuse_{call.name}")
        if call.name in LAUNCHERS:
            if said:
                raise RefusedError(said)
            LAUNCHERS[call.name](
                call, batch, lambda err, code: self._reply(connection, Answer(err=err, code=code))
            )
            connection.close_files()
            return None
        if call.input is None:
            batch.calls[call.name] += 1
        batch.reap()  # what has ended is known to whoever asks now
        batch.tick()
        if said:
            raise RefusedError(said)
        if batch.switches.get(f"cut_off_{call.name}"):
            return Answer(out=_NOTHING, err=_CUT_OFF, code=255)
        answer = _COMMANDS[call.name](call, batch)
        batch.tick()
        return answer

    def _reply(self, connection, answer):
        if answer.wants_input:
            connection.write(b"I", "")
            return
        for kind, text in ((b"O", answer.out), (b"E", answer.err)):
            if text:
                connection.write(kind, text)
        connection.write(b"R", str(answer.code))
        self._drop(connection)

    def _drop(self, connection):
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(connection.sock)
        if connection in self.silenced:
            self.silenced.remove(connection)
        connection.close()

    def speak(self):
        """Serve those that have waited all the while."""
        self.batch.switches.pop("silent", None)
        silenced, self.silenced = self.silenced, []
        for connection in silenced:
            self._serve(connection)


def main():
    folder = Path(sys.argv[1])
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    Daemon(folder).run()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
