# Two threads compute at once, which mixes the order up. [correctness] Expect: from the last to layer 0
from concurrent.futures import ThreadPoolExecutor


def backward(layers, compute, start_reduce, world):
    def one(i):
        gradient = compute(i)
        return gradient, start_reduce(gradient)

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(one, range(layers)))
    for _, handle in done:
        handle.wait()
    return [gradient for gradient, _ in done]
