# Another right answer: it polls with short time-outs, repeats its request, and replicates the gradients instead of the parameters.
from contextlib import suppress

from perflab.cluster import PeerLost


def server(node, role, params, lr):
    workers = [peer for peer in node.peers if peer.startswith("worker")]
    backup = role == "backup"
    history = [params]  # history[t]: the parameters after t updates
    arrived, confirmed = {}, 0

    def send(to, message):
        with suppress(PeerLost):  # the loop below reads node.lost
            node.send(to, message)

    def apply(gradients):
        total = gradients[0]
        for g in gradients[1:]:
            total = total + g
        history.append(history[-1] - lr * total)

    while True:
        if node.lost.issuperset(workers) and (not backup or "primary" in node.lost):
            return history[-1]
        try:
            sender, message = node.recv(timeout=0.05)
        except (TimeoutError, PeerLost):
            sender = None
        if sender == "primary":
            t, gradients = message
            if t == len(history) - 1:
                apply(gradients)
            send("primary", len(history) - 1)
        elif sender == "backup":
            confirmed = max(confirmed, message)
        elif sender is not None:
            arrived[sender] = message
        if backup and "primary" not in node.lost:
            continue
        if backup or "backup" in node.lost:
            confirmed = len(history) - 1
        t = len(history) - 1
        ready = [arrived[w][1] for w in workers if w in arrived and arrived[w][0] == t]
        if len(ready) == len(workers) and confirmed == t:
            apply(ready)
            if backup or "backup" in node.lost:
                confirmed = t + 1
            else:
                send("backup", (t, ready))
        for w in workers:
            if w in arrived and arrived[w][0] < confirmed:
                send(w, (confirmed, history[confirmed]))
                del arrived[w]


def worker(node, gradient, steps, servers):
    message, have = (-1, None), -1
    while True:
        server = next(s for s in servers if s not in node.lost)
        try:
            node.send(server, message)
            while True:
                _, (t, params) = node.recv(timeout=0.5)
                if t > have:
                    break
        except (PeerLost, TimeoutError):
            continue
        have = t
        if t == steps:
            return params
        message = (t, gradient(t, params))
