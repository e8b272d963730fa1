"""What crosses between the judge and an answer's process: JSON and raw arrays, nothing that can run.

A frame is two unsigned 64-bit lengths (header, payload), a JSON header and the bytes of the arrays one after the
other. Values are plain: ``None``, ``bool``, ``int``, ``float``, ``str``, ``list``, ``tuple``, ``dict``, NumPy arrays,
torch tensors and, from the judge to the answer only, functions. Types are exact: a subclass of a builtin can
answer ``True`` to every comparison, so none is sent. NumPy's scalars become the Python type of the same meaning.

The judge's process never imports torch: a tensor arrives there as :class:`Tensor`, which holds a NumPy array.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass

import numpy as np

MAX_FRAME_BYTES = 1 << 30
MAX_HEADER_BYTES = 32 << 20
MAX_DEPTH = 8
MAX_STRING = 1 << 20
MAX_INT_BITS = 256
_LENGTHS = struct.Struct("<QQ")
_KINDS = "biufc"


class WireError(Exception):
    """A frame or a value that breaks the rules above; the text says which."""


class Closed(WireError):
    """The other end is gone."""


@dataclass
class Tensor:
    """A torch tensor on the judge's side: `array` holds its values, `dtype` torch's own name (``"float32"``)."""

    array: np.ndarray
    dtype: str = ""

    def __post_init__(self):
        self.array = np.asarray(self.array)
        self.dtype = self.dtype or str(self.array.dtype)


@dataclass
class Proxy:
    """A function of the judge's that the answer is given: calling it there runs `function` here."""

    function: object


def type_name(value) -> str:
    """The type of a decoded value, as a student would write it: ``torch.Tensor (float32)``, ``numpy.ndarray``, ``int``."""
    if isinstance(value, Tensor):
        return f"torch.Tensor ({value.dtype})"
    if isinstance(value, np.ndarray):
        return f"numpy.ndarray ({value.dtype})"
    return type(value).__name__


def encode(value, *, function=None) -> tuple[object, list]:
    """A JSON tree for `value` and the arrays it refers to.

    `function(callable) -> int` names a function that may be sent; without it functions are refused.
    Raises WireError for a type that may not cross.
    """
    arrays: list = []

    def array_entry(array: np.ndarray, dtype: str | None) -> dict:
        if array.dtype.kind not in _KINDS:
            raise WireError(f"an array of dtype {array.dtype} can't be sent; use a numeric dtype")
        array = np.ascontiguousarray(array).reshape(array.shape)
        arrays.append(array)
        entry = {"dtype": array.dtype.str, "shape": list(array.shape)}
        return {"a": entry} if dtype is None else {"t": entry | {"torch": dtype}}

    def tree(v, depth):
        if depth > MAX_DEPTH:
            raise WireError(f"the value is nested deeper than {MAX_DEPTH} levels")
        kind = type(v)
        if v is None or kind is bool:
            return v
        if kind is int:
            if v.bit_length() > MAX_INT_BITS:
                raise WireError(f"an integer of more than {MAX_INT_BITS} bits can't be sent")
            return v
        if kind is float:
            return v if math.isfinite(v) else {"f": repr(v)}
        if kind is str:
            if len(v) > MAX_STRING:
                raise WireError(f"a string of {len(v)} characters is too long; the limit is {MAX_STRING}")
            return v.encode("utf-8", "replace").decode("utf-8")
        if kind is list:
            return [tree(x, depth + 1) for x in v]
        if kind is tuple:
            return {"(": [tree(x, depth + 1) for x in v]}
        if kind is dict:
            return {"{": [[tree(k, depth + 1), tree(x, depth + 1)] for k, x in v.items()]}
        if kind is np.ndarray:
            return array_entry(v, None)
        if kind is Tensor:
            return array_entry(v.array, v.dtype)
        if isinstance(v, np.bool_):
            return bool(v)
        if isinstance(v, np.integer):
            return int(v)
        if isinstance(v, np.floating):
            return tree(float(v), depth)
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor:
            return tensor_entry(torch, v)
        if isinstance(v, Proxy):
            v = v.function
        if callable(v) and function is not None:
            return {"call": function(v)}
        raise WireError(f"a value of type {kind.__module__}.{kind.__qualname__} can't be sent to the judge")

    def tensor_entry(torch, v):
        name = str(v.dtype).removeprefix("torch.")
        if v.layout is not torch.strided or v.is_quantized:
            raise WireError(f"a tensor of layout {v.layout} can't be sent; use a dense tensor")
        dense = v.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        if name in ("bfloat16", "float16"):
            dense = dense.to(torch.float32)
        return array_entry(dense.numpy(), name)

    return tree(value, 0), arrays


def decode(tree, arrays, *, function=None, as_torch=False):
    """The value of a tree from :func:`encode`; `arrays` in the same order. Raises WireError on anything malformed.

    `as_torch` makes torch tensors (the answer's side); otherwise they stay :class:`Tensor`.
    `function(int) -> callable` makes the functions; without it they are refused.
    """
    waiting = iter(arrays)

    def value(t, depth):
        if depth > MAX_DEPTH:
            raise WireError("a value nested too deep")
        kind = type(t)
        if kind is int and t.bit_length() > MAX_INT_BITS:
            raise WireError(f"an int of more than {MAX_INT_BITS} bits")
        if t is None or kind in (bool, int, float, str):
            return t
        if kind is list:
            return [value(x, depth + 1) for x in t]
        if kind is not dict or len(t) != 1:
            raise WireError("a malformed value")
        (tag, inner), = t.items()
        if tag == "f" and inner in ("nan", "inf", "-inf"):
            return float(inner)
        if tag == "(" and type(inner) is list:
            return tuple(value(x, depth + 1) for x in inner)
        if tag == "{" and type(inner) is list:
            try:
                return {value(k, depth + 1): value(x, depth + 1) for k, x in inner}
            except (TypeError, ValueError):
                raise WireError("a malformed dict") from None
        if tag in ("a", "t"):
            array = next(waiting, None)
            if array is None:
                raise WireError("an array is missing")
            if tag == "a":
                return array
            dtype = inner.get("torch") if type(inner) is dict else None
            if type(dtype) is not str:
                raise WireError("a malformed tensor")
            if as_torch:
                import torch

                return torch.from_numpy(array).to(getattr(torch, dtype))
            return Tensor(array, dtype[:32])
        if tag == "call" and function is not None:
            return function(inner)
        raise WireError("a malformed value")

    return value(tree, 0)


def _entries(tree, found):
    """The array entries of a tree in the order encode() wrote them."""
    if type(tree) is list:
        for x in tree:
            _entries(x, found)
    elif type(tree) is dict:
        for tag, inner in tree.items():
            if tag in ("a", "t") and type(inner) is dict and "shape" in inner:
                found.append(inner)
            else:
                _entries(inner, found)
    return found


class Connection:
    """One end of the private channel. `watch` is called with no argument whenever `watch_fd` has something to read."""

    def __init__(self, sock: socket.socket, *, max_frame_bytes: int = MAX_FRAME_BYTES):
        self.sock = sock
        self.max_frame_bytes = max_frame_bytes
        self.watch_fd: int | None = None
        self.watch = None
        sock.setblocking(False)

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()

    def send(self, message: dict, *, deadline: float | None = None, function=None) -> None:
        """Sends a dict whose entry ``"value"``, if any, may be any value of this module."""
        header = dict(message)
        arrays: list = []
        if "value" in header:
            header["value"], arrays = encode(header["value"], function=function)
        raw = json.dumps(header, allow_nan=False, ensure_ascii=True).encode()
        payload = sum(a.nbytes for a in arrays)
        if len(raw) > MAX_HEADER_BYTES or len(raw) + payload > self.max_frame_bytes:
            raise WireError(f"a message of {len(raw) + payload} bytes is over the limit of {self.max_frame_bytes}")
        self._write(_LENGTHS.pack(len(raw), payload) + raw, deadline)
        for a in arrays:
            self._write(a.reshape(-1).view(np.uint8).data if a.nbytes else b"", deadline)

    def receive(self, *, deadline: float | None = None) -> tuple[dict, list]:
        """The next frame: its header and its arrays (writable, of the receiver's own memory).

        Raises TimeoutError at the deadline (a time of time.monotonic), Closed at the end, WireError on nonsense.
        """
        header_bytes, payload_bytes = _LENGTHS.unpack(self._read(_LENGTHS.size, deadline))
        if header_bytes > MAX_HEADER_BYTES or header_bytes + payload_bytes > self.max_frame_bytes:
            raise WireError(f"a message of {header_bytes + payload_bytes} bytes is over the limit")
        try:
            header = json.loads(self._read(header_bytes, deadline).decode())
        except (ValueError, RecursionError):
            raise WireError("a message that is not JSON") from None
        if type(header) is not dict:
            raise WireError("a message that is not an object")
        try:
            entries = _entries(header.get("value"), [])
        except RecursionError:
            raise WireError("a value nested too deep") from None
        arrays, left = [], payload_bytes
        for entry in entries:
            dtype, shape = self._checked(entry)
            size = dtype.itemsize * math.prod(shape)
            if size > left:
                raise WireError("an array larger than its message")
            array = np.empty(shape, dtype)
            if size:
                self._read_into(array.reshape(-1).view(np.uint8).data, deadline)
            left -= size
            arrays.append(array)
        if left:
            raise WireError("a message longer than its arrays")
        return header, arrays

    @staticmethod
    def _checked(entry) -> tuple[np.dtype, tuple[int, ...]]:
        try:
            dtype, shape = np.dtype(str(entry["dtype"])), tuple(entry["shape"])
        except (KeyError, TypeError, ValueError):
            raise WireError("a malformed array") from None
        if dtype.kind not in _KINDS or len(shape) > 32 or any(type(n) is not int or not 0 <= n < 1 << 48 for n in shape):
            raise WireError("a malformed array")
        return dtype, shape

    def _wait(self, writing: bool, deadline: float | None) -> None:
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            poll = select.poll()
            poll.register(self.sock, select.POLLOUT if writing else select.POLLIN)
            if self.watch_fd is not None:
                poll.register(self.watch_fd, select.POLLIN)
            ready = dict(poll.poll(None if left is None else left * 1000 + 1))
            if self.watch_fd in ready:
                self.watch()
            if self.sock.fileno() in ready:
                return

    def _write(self, data, deadline) -> None:
        view = memoryview(data)
        while len(view):
            try:
                view = view[self.sock.send(view):]
            except BlockingIOError:
                self._wait(True, deadline)
            except (BrokenPipeError, ConnectionResetError):
                raise Closed("the other end is gone") from None

    def _read(self, size: int, deadline) -> bytes:
        data = bytearray(size)
        self._read_into(memoryview(data), deadline)
        return bytes(data)

    def _read_into(self, view: memoryview, deadline) -> None:
        while len(view):
            try:
                n = self.sock.recv_into(view)
            except BlockingIOError:
                self._wait(False, deadline)
                continue
            except ConnectionResetError:
                n = 0
            if n == 0:
                raise Closed("the other end is gone")
            view = view[n:]
