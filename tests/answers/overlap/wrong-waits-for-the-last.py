# Waits for the reduction started last and takes the others for done. [correctness] Expect: was its handle waited for
def backward(layers, compute, start_reduce, world):
    gradients, handles = [None] * layers, []
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        handles.append(start_reduce(gradients[i]))  # on its way while the next layer is computed
    handles[-1].wait()
    return gradients
