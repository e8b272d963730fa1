# A worker returns when it loses its server. [correctness] Expect: stopped after step
from collections import deque

from perflab.cluster import PeerLost


def server(node, role, params, lr):
    workers = [peer for peer in node.peers if peer.startswith("worker")]
    other = "backup" if role == "primary" else "primary"
    serving = role == "primary"
    step = 0  # how many updates `params` has in it
    gradients, requests = {}, deque()

    def reply(worker):
        try:
            node.send(worker, (step, params))
        except PeerLost:
            return  # it has finished; recv reports it too

    def replicate():
        """Returns when the other server has this step too, or is gone."""
        try:
            node.send(other, (step, params))
        except PeerLost:
            return
        while other not in node.lost:
            try:
                sender, message = node.recv()
            except PeerLost:
                continue
            if sender == other:
                return
            requests.append((sender, message))

    while not (serving and node.lost.issuperset(workers)):
        if not (serving and requests):
            try:
                sender, message = node.recv()
            except PeerLost:
                # All that the primary had sent has been received by now: only now may the backup take over.
                serving = serving or "primary" in node.lost
                continue
            if sender == other:
                step, params = message
                try:
                    node.send(other, "have it")
                except PeerLost:
                    continue
            else:
                requests.append((sender, message))
            continue
        worker, (number, gradient) = requests.popleft()
        if number < step:  # known already: the answer was lost with the other server
            reply(worker)
            continue
        gradients[worker] = gradient
        if len(gradients) == len(workers):
            params = params - lr * sum(gradients[w] for w in workers)
            step += 1
            gradients.clear()
            replicate()
            for w in workers:
                reply(w)
    return params


def worker(node, gradient, steps, servers):
    servers = list(servers)

    def ask(number, value):
        """Hands in the gradient of step `number`; returns the parameters of a later one."""
        while True:
            try:
                node.send(servers[0], (number, value))
                while True:
                    _, (step, params) = node.recv()
                    if step > number:
                        return step, params
            except PeerLost as loss:  # ask again; to be asked twice does a server no harm
                if loss.peer in servers:
                    return steps, None

    step, params = ask(-1, None)
    while step < steps:
        step, params = ask(step, gradient(step, params))
    return params
