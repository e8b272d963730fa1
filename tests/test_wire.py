"""What crosses between judge and answer: every value comes back as it was sent, and nonsense is refused."""

import json
import math
import socket
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab import wire

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.tuples(inner, inner)
    | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


def ends():
    a, b = socket.socketpair()
    return wire.Connection(a), wire.Connection(b)


def roundtrip(value, **options):
    left, right = ends()
    thread = threading.Thread(target=left.send, args=({"value": value},))
    thread.start()
    header, arrays = right.receive(deadline=time.monotonic() + 10)
    thread.join()
    return wire.decode(header["value"], arrays, **options)


def same(a, b):
    if type(a) is not type(b):
        return False
    if type(a) is float:
        return a == b or math.isnan(a) and math.isnan(b)
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) is dict:
        return same(list(a.items()), list(b.items()))
    if type(a) is str:
        return a.encode("utf-8", "replace") == b.encode("utf-8", "replace")
    return a == b


@settings(max_examples=300, deadline=None)
@given(PLAIN)
def test_plain_values_come_back_with_their_types(value):
    assert same(roundtrip(value), value)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "?", "c16", "u8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (4, 5)])
def test_arrays_come_back(dtype, shape):
    array = np.asarray(np.random.default_rng(0).random(shape) * 100).astype(dtype)
    back = roundtrip([array, "between", array])
    assert back[1] == "between"
    for got in (back[0], back[2]):
        assert got.dtype == array.dtype and got.shape == array.shape and np.array_equal(got, array)


def test_numpy_scalars_become_pythons():
    back = roundtrip([np.float32(1.5), np.int64(7), np.bool_(True)])
    assert [type(v) for v in back] == [float, int, bool]


def test_tensors_cross_with_their_dtype():
    import torch

    back = roundtrip([torch.arange(6.0).reshape(2, 3), torch.ones(2, dtype=torch.bfloat16)])
    assert back[0].dtype == "float32" and back[0].array.shape == (2, 3)
    assert back[1].dtype == "bfloat16"
    again = roundtrip(back[0], as_torch=True)
    assert isinstance(again, torch.Tensor) and again.dtype == torch.float32


class Agreeable(float):
    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


class Sneaky(dict):
    pass


@pytest.mark.parametrize(
    "value",
    [Agreeable(1), Sneaky(a=1), object(), {1, 2}, b"bytes", 1j, np.array([object()]), np.array(["x"]), lambda: 1, 1 << 300,
     np.ma.array([1.0]), "x" * (2 << 20)],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_other_types_are_refused(value):
    with pytest.raises(wire.WireError):
        wire.encode(value)


def test_tensor_subclasses_are_refused():
    import torch

    class Lazy(torch.Tensor):
        pass

    with pytest.raises(wire.WireError):
        wire.encode(torch.ones(2).as_subclass(Lazy))
    with pytest.raises(wire.WireError):
        wire.encode(torch.nn.Parameter(torch.ones(2)))


def test_nesting_without_end_is_refused():
    value: list = []
    value.append(value)
    with pytest.raises(wire.WireError, match="nested"):
        wire.encode(value)


def frame(header, payload=b"", lengths=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<QQ", *(lengths or (len(raw), len(payload)))) + raw + payload


@pytest.mark.parametrize(
    "data",
    [
        frame(b"not json"),
        frame([1, 2]),
        frame({}, lengths=(1 << 40, 0)),
        frame({"value": {"a": {"dtype": "O", "shape": [1]}}}, b"12345678"),
        frame({"value": {"a": {"dtype": "<f4", "shape": [1 << 40]}}}, b"1234"),
        frame({"value": {"a": {"dtype": "<f4", "shape": [-1]}}}, b"1234"),
        frame({"value": {"a": {"dtype": "<f4", "shape": [2]}}}, b"1234"),
        frame({"value": {"a": {"dtype": "|S4", "shape": [1]}}}, b"1234"),
        frame({"value": None}, b"left over"),
        frame({"value": {"a": {"shape": [1]}}}, b"1234"),
        frame(b"[" * 100_000),
    ],
)
def test_malformed_frames_are_refused_and_allocate_nothing(data):
    a, b = socket.socketpair()
    a.sendall(data)
    with pytest.raises(wire.WireError):
        header, arrays = wire.Connection(b).receive(deadline=time.monotonic() + 5)
        wire.decode(header["value"], arrays)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_noise_never_does_more_than_raise(data):
    a, b = socket.socketpair()
    a.sendall(data)
    a.close()
    with pytest.raises((wire.WireError, TimeoutError)):
        while True:
            header, arrays = wire.Connection(b).receive(deadline=time.monotonic() + 1)
            wire.decode(header.get("value"), arrays)


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["({atf", "call"] + ["call"]), x, max_size=2)))
def test_any_tree_decodes_or_is_refused(tree):
    try:
        wire.decode(tree, [])
    except wire.WireError:
        return


def test_a_receive_ends_at_its_deadline():
    left, right = ends()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        right.receive(deadline=started + 0.1)
    left.close()
    with pytest.raises(wire.Closed):
        right.receive(deadline=time.monotonic() + 5)
