# Reduces a copy and returns the original. [correctness] Expect: the tensor given to `start_reduce` that changes
def backward(layers, compute, start_reduce, world):
    gradients, handles = [None] * layers, []
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        handles.append(start_reduce(gradients[i].clone()))  # on its way while the next layer is computed
    for handle in handles:
        handle.wait()
    return gradients
