# Returns tensors that a thread fills in afterwards. [correctness] Expect: was its handle waited for
import threading


def backward(layers, compute, start_reduce, world):
    gradients = [None] * layers
    handles = []
    for i in reversed(range(layers)):
        gradients[i] = compute(i)
        handles.append(start_reduce(gradients[i]))
    threading.Thread(target=lambda: [handle.wait() for handle in handles]).start()
    return gradients
