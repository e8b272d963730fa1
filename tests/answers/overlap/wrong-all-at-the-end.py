# Computes everything, then reduces everything. Expect: Start a layer's reduction as soon as
def backward(layers, compute, start_reduce, world):
    gradients = [None] * layers
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
    for handle in [start_reduce(g) for g in gradients]:
        handle.wait()
    return gradients
