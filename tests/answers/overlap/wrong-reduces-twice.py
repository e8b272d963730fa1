# Reduces every gradient twice. [correctness] Expect: only once
def backward(layers, compute, start_reduce, world):
    gradients, handles = [None] * layers, []
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        handles.append(start_reduce(gradients[i]))  # on its way while the next layer is computed
    for handle in handles:
        handle.wait()
    for handle in [start_reduce(g) for g in gradients]:
        handle.wait()
    return gradients
