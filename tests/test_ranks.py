"""perflab.ranks: values in order, failures that name the rank, bytes counted, nothing left behind."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from perflab.ranks import RankFailed, Ranks, sent_bytes


def test_values_come_back_in_rank_order_and_functions_travel_by_value():
    offset = 10
    with Ranks(3) as ranks:
        assert ranks.run(lambda rank, world, x: (offset + rank, world, x), "x") == [
            (10, 3, "x"),
            (11, 3, "x"),
            (12, 3, "x"),
        ]


def test_an_exception_names_the_rank_and_the_next_run_starts_afresh():
    def fail_on_one(rank, world):
        if rank == 1:
            raise ValueError("the message of rank one")
        return rank

    with Ranks(2) as ranks:
        with pytest.raises(RankFailed, match="(?s)Rank 1 of 2.*the message of rank one"):
            ranks.run(fail_on_one)
        assert ranks.run(lambda rank, world: rank) == [0, 1]


def test_a_killed_rank_is_named_while_the_other_waits_for_it():
    def die(rank, world):
        import torch
        import torch.distributed as dist

        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.recv(torch.empty(1), 1)

    # Which rank is seen first is a race: the one that died, or its partner whose receive failed.
    with Ranks(2) as ranks, pytest.raises(RankFailed, match="Rank [01] of 2"):
        ranks.run(die)


def test_a_rank_that_waits_for_ever_is_named():
    def deadlock(rank, world):
        import torch
        import torch.distributed as dist

        if rank == 0:
            dist.recv(torch.empty(1), 1)

    with Ranks(2) as ranks, pytest.raises(RankFailed, match=r"Rank\(s\) \[0\] of 2 did not finish"):
        ranks.run(deadlock, timeout_s=2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes per connection")
@pytest.mark.parametrize("world", [2, 3, 4])
def test_gloo_all_reduce_sends_what_the_formula_says(world):
    def count(rank, world, length):
        import torch
        import torch.distributed as dist

        x = torch.ones(length)
        dist.all_reduce(x)  # the first one opens the connections
        before = sent_bytes()
        dist.all_reduce(x)
        return sent_bytes() - before

    length = 1 << 20
    with Ranks(world) as ranks:
        for sent in ranks.run(count, length):
            assert sent == pytest.approx(2 * (world - 1) / world * 4 * length, rel=0.01)


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ranks = Ranks(2)
    pids = ranks.run(lambda rank, world: os.getpid())
    ranks.close()
    ranks.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not list(Path(tmp_path).iterdir())


def test_a_world_of_nobody_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        Ranks(0)
