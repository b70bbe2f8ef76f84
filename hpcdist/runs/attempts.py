"""The attempts and lives of a run: who leads, how each began, and why it ended."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.runs.paths import RunPaths
from hpcdist.runs.verdict import Beginning, Hang, Verdict

_ATTEMPT = re.compile(r"[0-9]{5,9}")


class Attempts(RunPaths):
    """The part of a run directory that says what became of its attempts."""

    def write_attempt_verdict(self, verdict: Verdict) -> None:
        """Say why an attempt ended after which the ranks are started again."""
        path = self._attempt_file(verdict.attempt, "verdict.json")
        files.write_json(path, msgspec.to_builtins(verdict))

    def write_lost_attempt_verdict(self, verdict: Verdict) -> bool:
        """Say why an attempt ended whose own agents did not; True where there was no verdict on it
        yet."""
        path = self._attempt_file(verdict.attempt, "verdict.json")
        return files.write_once(path, files.to_json(msgspec.to_builtins(verdict)))

    def read_attempt_verdict(self, attempt: int) -> Verdict | None:
        """Return why an attempt ended; None where it goes on, or was the last."""
        return files.read_as(self._attempt_file(attempt, "verdict.json"), Verdict)

    def age_of_attempt_verdict(self, attempt: int) -> float:
        """Return the seconds since an attempt's verdict was written, by the clock of the files."""
        try:
            written_s = self._attempt_file(attempt, "verdict.json").stat().st_mtime
        except OSError:
            return math.inf
        return files.now_by(self.launch_folder) - written_s

    def write_beginning(self, attempt: int, beginning: Beginning) -> None:
        path = self._attempt_file(attempt, "begin.json")
        files.write_json(path, msgspec.to_builtins(beginning))

    def read_beginning(self, attempt: int) -> Beginning | None:
        """Return how an attempt began; None where that is not known."""
        return files.read_as(self._attempt_file(attempt, "begin.json"), Beginning)

    def write_hang(self, hang: Hang) -> None:
        path = self._attempt_file(hang.attempt, "hang.json")
        files.write_json(path, msgspec.to_builtins(hang))

    def read_hang(self, attempt: int) -> Hang | None:
        """Return what is said of an attempt that hangs; None where it does not, or no more."""
        hang = files.read_as(self._attempt_file(attempt, "hang.json"), Hang)
        return None if hang is None or hang.recovered_s is not None else hang

    def _attempt_file(self, attempt: int, name: str) -> Path:
        return self.attempts_folder / f"{attempt:05d}" / name

    def claim_end_of_life(self, life: int) -> bool:
        """Take it on to have the job started again after one of its lives; True for one caller."""
        try:
            self._end_of_life_file(life).touch(files.PRIVATE_FILE, exist_ok=False)
        except FileExistsError:
            return False
        return True

    def has_claimed_end_of_life(self, life: int) -> bool:
        """Return whether somebody has taken that on."""
        return self._end_of_life_file(life).exists()

    def _end_of_life_file(self, life: int) -> Path:
        return self.launch_folder / f"life-{life:05d}.ended"

    def claim_attempt(self) -> int:
        """Take the next attempt number; whoever holds the newest leads the run."""
        attempt = self.newest_attempt() + 1
        while True:
            try:
                (self.attempts_folder / f"{attempt:05d}").mkdir(mode=files.PRIVATE_FOLDER)
            except FileExistsError:
                attempt += 1
            else:
                return attempt

    def attempts(self) -> list[int]:
        """Return the attempt numbers taken, in order."""
        return sorted(map(int, filter(_ATTEMPT.fullmatch, files.list_names(self.attempts_folder))))

    def newest_attempt(self) -> int:
        """Return the newest attempt number taken; -1 before the first."""
        return max(self.attempts(), default=-1)

    def look_anew(self) -> None:
        """Have verdicts that other hosts have just written found, in the place of what a client of
        a shared file system remembers: it was told before that there is none."""
        files.refresh(self.path)
        with suppress(OSError):  # removed a moment ago
            if (newest := self.newest_attempt()) >= 0:
                files.refresh(self._attempt_file(newest, "verdict.json").parent)
