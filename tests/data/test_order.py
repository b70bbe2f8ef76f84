import pytest

from hpcdist.data.order import EpochPlan, epoch_order


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("num_samples", "position"), [(1, 0), (2, 0), (17, 0), (96, 0), (203, 0), (203, 5), (203, 96)]
)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_sample_is_used_once_per_epoch_from_any_position_on(
    num_samples, position, world_size, accumulate
):
    order = epoch_order(num_samples, seed=0, epoch=0)
    seen, num_steps, last = [], set(), []
    for plan in _plans(num_samples, world_size, accumulate=accumulate):
        steps = list(plan.steps(position))
        num_steps.add(len(steps))
        assert position or len(steps) == plan.num_steps()
        for _, shares in steps:
            seen += [at for share in shares for at in range(share.begin, share.end)]
            for share in shares:  # a small one is filled, within the order
                indices = order[share.begin : share.filled_end].tolist()
                assert len({*indices}) == len(indices) == max(share.count, min(2, num_samples))
        last.append(steps[-1][1][-1].count)
    assert sorted(seen) == list(range(position, num_samples))
    assert len(num_steps) == 1
    assert max(last) - min(last) <= 1


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_epoch_whose_ranks_are_lost_uses_each_sample_once_in_the_same_steps(accumulate):
    """The first half of the steps by 8 ranks, one step by 5 ranks, and the rest by one rank."""
    order = epoch_order(203, seed=1, epoch=4)
    whole = [end for end, _ in _plans(203, 8, accumulate=accumulate)[0].steps()]
    lists, ends, at = [], [], 0
    for world_size, num_steps in ((8, len(whole) // 2), (5, 1), (1, None)):
        plans = _plans(203, world_size, accumulate=accumulate, full_world_size=8)
        own = [[*plan.steps(at)][:num_steps] for plan in plans]
        by_rank = [share for steps in own for _, shares in steps for share in shares]
        assert max(share.count for share in by_rank) <= 4  # batches of a rank do not grow
        lists += [order[share.begin : share.end].tolist() for share in by_rank]
        ends += [end for end, _ in own[0]]
        at = ends[-1]
    assert ends == whole
    samples = [sample for one in lists for sample in one]
    assert sorted(samples) == list(range(203))


def test_the_order_depends_on_the_seed_and_the_epoch_only():
    first = epoch_order(50, seed=1, epoch=2)
    assert first.equal(epoch_order(50, seed=1, epoch=2))
    assert sorted(first[:50].tolist()) == list(range(50))
    assert not first.equal(epoch_order(50, seed=1, epoch=3))
    assert not first.equal(epoch_order(50, seed=2, epoch=2))
    assert not first.equal(epoch_order(50, seed=2, epoch=1))


def _plans(num_samples, world_size, *, accumulate=1, full_world_size=0):
    return [
        EpochPlan(
            num_samples=num_samples,
            batch_size=4,
            accumulate=accumulate,
            rank=rank,
            world_size=world_size,
            full_world_size=full_world_size,
        )
        for rank in range(world_size)
    ]
