"""The check job: what every rank records."""

import torch


def test_every_rank_records_its_place_and_takes_part_in_the_collective(submit_job):
    checked = submit_job("check", nodes=2, gpus=2)
    assert checked.verdict().state == "done"
    ports = set()
    for rank in range(4):
        events = checked.events(rank)
        found = ["table", "cell", "findings"] if rank == 0 else []
        kinds = ["start", "place", "collective", *found, "end"]
        assert [event["event"] for event in events] == kinds
        place = events[1]
        environment = place["environment"]
        assert environment["RANK"] == str(rank)
        assert environment["NODE_RANK"] == str(rank // 2)
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        ports.add(environment["MASTER_PORT"])
        assert place["versions"]["torch"] == torch.__version__
        assert place["token"] == checked.run.id
        assert (place["device"], place["gpu"]) == ("cpu", None)
        assert all(events[2][key] >= 0 for key in ("group_time_s", "all_reduce_time_s"))
        assert events[2]["bus_bytes_per_s"] > 0
    assert len(ports) == 1
    assert "rank 3 of 4 on " in checked.log(3)
    assert checked.log(0).splitlines()[-1].endswith(" added up right")
