import abc
import csv
import os
import typing
from collections.abc import Mapping

import h11
import httpx

class Sentinel(type):
    """Has itself for its type, as the sentinels of h11 have."""

    def __new__(cls, name, bases, namespace):
        made = super().__new__(cls, name, bases, namespace)
        made.__class__ = made
        return made


class Feature(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return NotImplemented


DONE = Sentinel("DONE", (Sentinel,), {})
kinds = [type(f"Kind{number}", (), {"none": typing.Optional[list[f"Kind{number}"]]}) for number in range(300)]
for kind in kinds:
    Feature.register(kind)
    Mapping.register(kind)

assert isinstance(kinds[0](), Feature) and httpx.URL("a") and h11.DONE is not DONE
table = csv.writer(open(f"metrics-{os.environ['RANK']}.csv", "w"))
table.writerow(["epoch", "loss"])
print("trained")
