"""The shipped job `check`, as its file says, on simulated nodes."""

import torch


def test_in_a_check_every_rank_records_its_place_and_takes_part_in_the_collective(submit_job):
    checked = submit_job("check", nodes=2, gpus=2)
    assert checked.verdict().state == "done"
    ports = set()
    for rank in range(4):
        events = checked.events(rank)
        found = ["table", "cell", "findings"] if rank == 0 else []
        kinds = ["start", "place", "collective", *found, "end"]
        assert [event["event"] for event in events] == kinds
        place, collective = events[1:3]
        environment = place["environment"]
        ports.add(environment["MASTER_PORT"])
        assert (environment["RANK"], environment["NODE_RANK"]) == (str(rank), str(rank // 2))
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert place["versions"]["torch"] == torch.__version__
        assert (place["token"], place["device"], place["gpu"]) == (checked.run.id, "cpu", None)
        assert all(collective[key] >= 0 for key in ("group_time_s", "all_reduce_time_s"))
        assert collective["bus_bytes_per_s"] > 0
    assert len(ports) == 1
    assert "rank 3 of 4 on " in checked.log(3)
    assert checked.log(0).splitlines()[-1].endswith(" added up right")
