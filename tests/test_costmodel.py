"""perflab.costmodel: every schedule sums, keeps the one-port rule, and takes the time of its closed form."""

import math

import numpy as np
import pytest

from perflab import costmodel as cm

WORLDS = [1, 2, 3, 4, 5, 8, 13]
FLAT = [cm.one_server, cm.sharded_servers, cm.tree, cm.ring]
ALL = [f(n) for f in FLAT for n in WORLDS] + [
    cm.hierarchical(g, m) for g, m in [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 4)]
]


def name(schedule):
    return f"{schedule.name}-{schedule.n}"


def carry_out(schedule, vectors):
    """The vectors [n, pieces] after the schedule, every message of a round sent before any is received."""
    vectors = vectors.copy()
    for src, dst, first, width, add in schedule.rounds():
        sent = [vectors[s, f : f + width].copy() for s, f in zip(src, first, strict=True)]
        for d, f, message in zip(dst, first, sent, strict=True):
            assert len(message) == width
            vectors[d, f : f + width] = message + (vectors[d, f : f + width] if add else 0)
    return vectors


@pytest.mark.parametrize("schedule", ALL, ids=name)
def test_everybody_ends_with_the_sum(schedule):
    vectors = np.random.default_rng(schedule.n).integers(0, 1 << 40, (schedule.n, schedule.pieces))
    assert (carry_out(schedule, vectors) == vectors.sum(0)).all()


@pytest.mark.parametrize("schedule", ALL, ids=name)
def test_a_machine_sends_and_receives_one_message_a_round(schedule):
    for src, dst, _, _, _ in schedule.rounds():
        assert len(set(src)) == len(src) == len(set(dst))
        assert (src != dst).all()


@pytest.mark.parametrize("n", [2, 3, 4, 8, 13])
def test_the_simulation_gives_the_closed_forms(n):
    alpha, beta, size = 1e-3, 1e8, 3e7
    depth = math.ceil(math.log2(n))
    closed = {
        cm.one_server: 2 * (n - 1) * (alpha + size / beta),
        cm.sharded_servers: 2 * (n - 1) * (alpha + size / n / beta),
        cm.tree: 2 * depth * (alpha + size / beta),
        cm.ring: 2 * (n - 1) * (alpha + size / n / beta),
    }
    for schedule, seconds in closed.items():
        simulated = cm.simulate(schedule(n), size, cm.uniform(alpha, beta)).max()
        assert simulated == pytest.approx(seconds), schedule(n).name


def test_the_hierarchy_pays_the_slow_links_for_its_share_alone():
    g, m, size = 4, 8, 1e9
    inner, outer = cm.uniform(1e-6, 1e11), cm.uniform(1e-5, 1e9)
    simulated = cm.simulate(cm.hierarchical(g, m), size, cm.two_level(m, inner, outer)).max()
    closed = 2 * (m - 1) * (1e-6 + size / m / 1e11) + 2 * (g - 1) * (1e-5 + size / m / g / 1e9)
    assert simulated == pytest.approx(closed)
    assert cm.simulate(cm.ring(g * m), size, cm.two_level(m, inner, outer)).max() > 5 * simulated


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_ring_sends_what_it_must_and_no_more(n):
    assert (cm.ring(n).sent_pieces() == 2 * (n - 1)).all()
    assert (cm.sharded_servers(n).sent_pieces() == 2 * (n - 1)).all()
    assert cm.one_server(n).sent_pieces()[0] == n - 1


def test_one_slow_machine_slows_the_ring_as_much_as_if_all_were_slow():
    cost = cm.uniform(0.0, 1e8)
    slow = np.ones(8)
    slow[3] = 3.0
    one = cm.simulate(cm.ring(8), 1e8, cost, slowness=slow).max()
    assert one == pytest.approx(3 * cm.simulate(cm.ring(8), 1e8, cost).max())


def test_nobody_has_the_sum_before_the_last_has_its_vector():
    ready = np.array([0.0, 0.0, 5.0, 0.0])
    for schedule in (f(4) for f in FLAT):
        assert cm.simulate(schedule, 8, cm.uniform(0.0, 1e9), ready_s=ready).min() >= 5.0


def test_failures_without_failures_cost_the_checkpoints():
    rng = np.random.default_rng(0)
    assert cm.run_with_failures(100, 10, 1, 5, 1e12, rng) == pytest.approx(100 + 9 * 1)


def test_youngs_interval_is_near_the_best():
    work, checkpoint, restart, between = 2000.0, 1.0, 2.0, 60.0

    def mean(interval):
        rng = np.random.default_rng(1)
        return np.mean([cm.run_with_failures(work, interval, checkpoint, restart, between, rng) for _ in range(60)])

    best = cm.best_interval_s(checkpoint, between)
    assert mean(best) < mean(best / 4) * 0.95
    assert mean(best) < mean(best * 5) * 0.95
