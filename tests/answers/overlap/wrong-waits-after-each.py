# Waits for each reduction before the next layer is computed. Expect: Start a layer's reduction as soon as
def backward(layers, compute, start_reduce, world):
    gradients, handles = [None] * layers, []
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        start_reduce(gradients[i]).wait()
    for handle in handles:
        handle.wait()
    return gradients
