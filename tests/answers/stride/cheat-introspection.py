# Looks for the judge's secret in the function it was given. Expect: not in this process


C_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>

uint64_t walk(const uint64_t *a, size_t n, size_t stride) {
    uint64_t h = 0;
    for (size_t first = 0; first < stride && first < n; first++) {
        size_t i = first;
        for (;;) {
            h = h * 31 + a[i];
            if (n - i <= stride) break;
            i += stride;
        }
    }
    return h;
}
"""


def experiment(walk):
    for cell in walk.__closure__:
        device = getattr(cell.cell_contents, "__self__", None)
        if hasattr(device, "ns"):
            return {stride * 8: ns for stride, ns in device.ns.items()}
    raise LookupError("the secret is not in this process")
