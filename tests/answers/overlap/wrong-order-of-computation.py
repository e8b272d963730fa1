# Returns the gradients in the order they were computed in. [correctness] Expect: indexed by layer
def backward(layers, compute, start_reduce, world):
    gradients, handles = [None] * layers, []
    for i in reversed(range(layers)):
        gradients[layers - 1 - i] = compute(i)
        handles.append(start_reduce(gradients[layers - 1 - i]))  # on its way while the next layer is computed
    for handle in handles:
        handle.wait()
    return gradients
