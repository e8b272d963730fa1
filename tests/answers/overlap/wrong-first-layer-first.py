# Computes layer 0 first: a backward pass can't. [correctness] Expect: from the last to layer 0
def backward(layers, compute, start_reduce, world):
    gradients, handles = [None] * layers, []
    for i in range(layers):
        gradients[i] = compute(i)
        handles.append(start_reduce(gradients[i]))  # on its way while the next layer is computed
    for handle in handles:
        handle.wait()
    return gradients
