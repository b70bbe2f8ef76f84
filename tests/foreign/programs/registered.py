"""Has the types of h11, httpx and datasets (sentinels, many registered classes), and an open file."""

import abc
import csv
import os
import signal
import typing
import zipfile
from collections.abc import Mapping

import h11
import httpx


class Sentinel(type):
    """Has itself as its type, as the sentinels of h11 have."""

    def __new__(cls, name, bases, namespace):
        made = super().__new__(cls, name, bases, namespace)
        made.__class__ = made
        return made


class Feature(abc.ABC):
    pass


DONE = Sentinel("DONE", (Sentinel,), {})
kinds = [type(f"Kind{n}", (), {"of": typing.Optional[list[f"Kind{n}"]]}) for n in range(300)]
for kind in kinds:
    Feature.register(kind)
    Mapping.register(kind)

table = csv.writer(open(f"metrics-{os.environ['RANK']}.csv", "w"))
table.writerow(["epoch", "loss"])
table.writerow([isinstance(kinds[0](), Feature), httpx.URL("http://a").host, h11.DONE is DONE])


class Last:
    def __del__(
        self, write=os.write, file=os.open(f"kept-{os.environ['RANK']}", os.O_RDWR | os.O_CREAT)
    ):
        write(file, b"destroyed")


h11.of_the_program = Last()
archive = zipfile.ZipFile(f"archive-{os.environ['RANK']}.zip", "w")
archive.writestr(zipfile.ZipInfo("member"), "content")
signal.signal(signal.SIGTERM, lambda *_: archive.close())  # it refers to this module
print("trained")
