# Never reduces the last gradient. [correctness] Expect: was never given to `start_reduce`
def backward(layers, compute, start_reduce, world):
    gradients, handles = [None] * layers, []
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        if i:
            handles.append(start_reduce(gradients[i]))  # on its way while the next layer is computed
    for handle in handles:
        handle.wait()
    return gradients
