"""Has the types of h11, httpx and datasets (sentinels, many registered classes), and an open file."""

import abc
import csv
import os
import typing
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
print("trained")
