# Asks the device for all layers at once on its socket, so as not to wait for each. [correctness] Expect: from the last to layer 0
import socket

import torch

from perflab import host, wire


def backward(layers, compute, start_reduce, world):
    device = wire.Connection(socket.socket(fileno=host.descriptor("device")))
    for i in range(layers):
        device.send({"value": i})
    gradients = [torch.from_numpy(device.receive()[1][0]) for _ in range(layers)]
    for handle in [start_reduce(g) for g in gradients]:
        handle.wait()
    return gradients
