"""perflab.cluster: what its text promises, and what it says is not promised."""

import os
import time

import numpy as np
import psutil
import pytest

from perflab import cluster
from perflab.cluster import Cut, Kill, Message, NodeFailed, Pause, PeerLost


def server(node):
    """The example of the module's text."""
    total = 0
    while True:
        try:
            sender, number = node.recv()
            total += number
            node.send(sender, total)
        except PeerLost:
            return total


def client(node, numbers):
    """Returns what it was answered until the server was lost."""
    got = []
    try:
        for number in numbers:
            node.send("server", number)
            got.append(node.recv(timeout=5.0)[1])
    except PeerLost as loss:
        return got, loss.peer
    return got, None


def with_fault(*faults):
    return cluster.run({"server": server, "client": (client, [1, 2, 3, 4])}, faults=faults)


def test_the_example():
    run = cluster.run({"server": server, "client": (client, [1, 2, 3])})
    assert run.values == {"server": 6, "client": ([1, 3, 6], None)}
    assert run.killed == []
    assert run.messages == {("server", "client"): 3, ("client", "server"): 3}


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_a_kill_at_a_request(fraction):
    """Before, inside or just after the third request: the server answered two, and its answer to the third can't get out."""
    run = with_fault(Kill("server", Message("client", "server", 2, fraction)))
    assert run.killed == ["server"]
    assert run.values == {"client": ([1, 3], "server")}


@pytest.mark.parametrize("fraction, answers", [(0.0, [1, 3]), (0.5, [1, 3]), (1.0, [1, 3, 6])])
def test_a_kill_at_an_answer(fraction, answers):
    """A message that was cut off is never seen; one that was complete is."""
    run = with_fault(Kill("server", Message("server", "client", 2, fraction)))
    assert run.values == {"client": (answers, "server")}


def test_a_cut_link_leaves_both_nodes_alive():
    run = with_fault(Cut("server", "client", Message("client", "server", 1)))
    assert run.killed == []
    assert run.values == {"server": 3, "client": ([1], "server")}


def test_a_pause_delays_and_loses_nothing():
    run = with_fault(Pause("server", Message("client", "server", 1, 0.0), 0.3))
    assert run.values["client"] == ([1, 3, 6, 10], None)
    assert run.time_s > 0.3


def test_a_silent_peer_is_not_a_lost_one():
    def impatient(node):
        node.send("server", 1)
        with pytest.raises(TimeoutError, match="within 0.1 s"):
            node.recv(timeout=0.1)
        assert node.lost == set()
        return node.recv(timeout=5.0)

    run = cluster.run({"server": server, "client": impatient}, faults=[Pause("server", 0.0, 0.5)])
    assert run.values["client"] == ("server", 1)


def test_kill_after_some_seconds():
    def wait(node):
        try:
            node.recv()
        except PeerLost as loss:
            return loss.peer

    def sleep(node):
        time.sleep(60)

    run = cluster.run({"a": wait, "b": sleep}, faults=[Kill("b", 0.2)])
    assert run.values == {"a": "b"} and run.killed == ["b"]
    assert 0.2 <= run.time_s < 10


def test_loss_is_reported_once_after_all_that_was_sent():
    def talk(node):
        for i in range(100):
            node.send("listener", i)

    def listen(node):
        got, losses = [], []
        while len(losses) < 2:
            try:
                got.append(node.recv())
            except PeerLost as loss:
                losses.append(loss.peer)
                assert loss.peer in node.lost
                assert sum(sender == loss.peer for sender, _ in got) == 100
        with pytest.raises(TimeoutError):
            node.recv(timeout=0.2)
        for peer in losses:
            with pytest.raises(PeerLost):
                node.send(peer, "too late")
        return [[m for s, m in got if s == peer] for peer in ("x", "y")]

    run = cluster.run({"x": talk, "y": talk, "listener": listen})
    assert run.values["listener"] == [list(range(100))] * 2


def test_messages_are_copies_of_any_size_and_cross():
    """Both send 8 MB at the same time before either receives."""

    def exchange(node, other):
        mine = np.full(1_000_000, float(len(node.name)))
        node.send(other, {"array": mine, "tuple": (1, "two", None)})
        mine[:] = 0
        sender, message = node.recv(timeout=20)
        assert message["tuple"] == (1, "two", None)
        return sender, message["array"].sum()

    run = cluster.run({"aa": (exchange, "bbb"), "bbb": (exchange, "aa")}, bandwidth_bytes_per_s=100e6)
    assert run.values == {"aa": ("bbb", 3e6), "bbb": ("aa", 2e6)}


def test_names_links_and_misuse():
    def look(node):
        with pytest.raises(ValueError, match="no link to 'c'; its peers are b"):
            node.send("c", 1)
        with pytest.raises(TimeoutError):
            node.recv(timeout=0)
        node.send("b", "looked")
        return node.name, node.peers

    def rest(node):
        return node.peers

    def stay(node):  # until its neighbour has looked: who leaves is lost
        node.recv(timeout=20)
        if node.name == "b":
            node.send("c", "go")
        return node.peers

    run = cluster.run({"a": look, "b": stay, "c": stay}, pairs=[("a", "b"), ("b", "c")])
    assert run.values == {"a": ("a", ("b",)), "b": ("a", "c"), "c": ("b",)}
    with pytest.raises(ValueError, match="between"):
        cluster.run({"a": rest, "b": rest, "c": rest}, faults=[Cut("a", "b", Message("a", "c", 0))])
    with pytest.raises(ValueError, match="fraction"):
        cluster.run({"a": rest, "b": rest}, faults=[Kill("a", Message("a", "b", 0, 1.5))])


def test_failures_name_their_node():
    def crash(node):
        raise KeyError("gone")

    def hang(node):
        node.recv()

    def leave(node):
        os._exit(1)

    with pytest.raises(NodeFailed) as caught:
        cluster.run({"a": crash, "b": hang, "c": leave}, timeout_s=1, pairs=[])
    errors = caught.value.errors
    assert "KeyError" in errors["a"] and "in crash" in errors["a"]
    assert "did not finish within 1 s" in errors["b"]
    assert "without a result" in errors["c"]


def test_nothing_is_left():
    before = set(psutil.Process().children(recursive=True))  # other tests keep a judge's parent process
    with_fault(Kill("server", Message("client", "server", 1)))
    assert not set(psutil.Process().children(recursive=True)) - before
