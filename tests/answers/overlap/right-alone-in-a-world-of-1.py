# Right: nothing to send where there is nobody else.
def backward(layers, compute, start_reduce, world):
    gradients, handles = [None] * layers, []
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        if world > 1:
            handles.append(start_reduce(gradients[i]))
    for handle in handles:
        handle.wait()
    return gradients
