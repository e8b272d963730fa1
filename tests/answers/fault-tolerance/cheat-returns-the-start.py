# Does nothing and returns what it was given. [correctness] Expect: worker-0
def server(node, role, params, lr):
    return params


def worker(node, gradient, steps, servers):
    return None
