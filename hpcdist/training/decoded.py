"""Whether the decoded photographs of a training are kept in memory, shared by a node's ranks."""

from __future__ import annotations

import torch.distributed as dist

from hpcdist.data.arrays import DataSet
from hpcdist.data.images.cache import DecodedCache, affordable_bytes, needed_bytes
from hpcdist.data.images.samples import ImageSamples
from hpcdist.job.spec import Data, TrainingJob
from hpcdist.rank.context import RankContext

Place = tuple[int, int, int]


def share_decoded(
    data: DataSet, context: RankContext, job: TrainingJob, *, has_group: bool
) -> None:
    """Give the image files of a data set their cache where the job asks for it and it fits.

    Every rank calls this, once. One rank of each node makes the memory, and the others take it from
    there: each picture is decoded once per node.
    """
    parts = [part for part in (data.train, data.test) if isinstance(part, ImageSamples)]
    share_parts(parts, context, job.data, mem_gb=job.resources.mem_gb, has_group=has_group)


def share_parts(
    parts: list[ImageSamples],
    context: RankContext,
    data: Data,
    *,
    mem_gb: float | None,
    has_group: bool,
) -> None:
    """The same for parts of a data set; `mem_gb`: resources.mem_gb."""
    if not parts or data.cache is False:
        return
    made = _make(parts, data, mem_gb) if context.local_rank == 0 else []
    everybodys: list[tuple[int, list[Place]] | None] = [None] * context.world_size
    own = (context.node_rank, [cache.place for cache in made])
    if has_group:
        dist.all_gather_object(everybodys, own)
    else:
        everybodys = [own]
    places = [here for node, here in filter(None, everybodys) if node == context.node_rank and here]
    if not places:
        return
    for part, place in zip(parts, places[0], strict=False):  # fewer, where not all fit
        part.cache = made.pop(0) if made else _open(place, part, context)


def _make(parts: list[ImageSamples], data: Data, mem_gb: float | None) -> list[DecodedCache]:
    """Caches for as many parts as fit."""
    left = affordable_bytes(None if mem_gb is None else mem_gb * 1e9)
    made: list[DecodedCache] = []
    for part in parts:
        left -= needed_bytes(len(part), part.decoded_shape)
        if left < 0 and data.cache == "auto":
            break
        made.append(DecodedCache.make(len(part), part.decoded_shape))
    return made


def _open(place: Place, part: ImageSamples, context: RankContext) -> DecodedCache | None:
    """What the first rank of this node has made; a rank that cannot reach it does without."""
    try:
        return DecodedCache.open_at(place, len(part), part.decoded_shape)
    except OSError as error:
        message = f"decoded photographs are not shared with this rank: {error.strerror or error}"
        context.events.write("note", message=message)
        return None
