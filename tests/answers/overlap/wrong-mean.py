# The mean where the sum is asked. [correctness] Expect: holds the mean
def backward(layers, compute, start_reduce, world):
    gradients, handles = [None] * layers, []
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        handles.append(start_reduce(gradients[i]))  # on its way while the next layer is computed
    for handle in handles:
        handle.wait()
    return [g / world for g in gradients]
