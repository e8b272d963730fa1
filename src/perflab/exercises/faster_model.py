"""12.1: can a model be made faster without changing what it computes, and be saved so that its class is not needed?

The baseline runs in a process of its own. A loaded copy runs in a third, where the model's class does not exist.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np

from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed
from perflab.wire import Tensor, type_name

SLUG = "faster-model"
TITLE = ("A faster model", "更快的模型")
ENTRY_POINTS = ("optimise", "save", "load")
MAX_POINTS = 10

TOLERANCE = 1e-4
FASTER_BY, NEVER_BELOW = 1.25, 0.9
COMPILE_S = 120
FILE_NAME = "model"


@dataclass(frozen=True)
class Model:
    """A model of the judge's: its class in MODELS (or in the hidden source), the shapes of its inputs, what to call it."""

    cls: str
    shapes: tuple[tuple[int, ...], ...]
    name: tuple[str, str]
    must_be_faster: bool = False


# Public models. The first is rich in elementwise operations, each of them a pass through memory when run one by one;
# the others spend their time in library kernels, where there is little to gain and something to lose.
MODELS = '''
import torch
from torch import nn

class Gates(nn.Module):
    """A chain of elementwise gates on a wide hidden layer."""
    def __init__(self, width=4096, depth=6):
        super().__init__()
        self.widen = nn.Linear(16, width)
        self.scale = nn.Parameter(torch.randn(depth, width) * 0.2 + 1)
        self.shift = nn.Parameter(torch.randn(depth, width) * 0.1)
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        h = self.widen(x)
        for scale, shift in zip(self.scale, self.shift):
            h = torch.relu(h * scale + shift) - 0.1 * h.clamp(-1.0, 1.0) + 0.01 * h * h / (1.0 + h.abs())
        return self.head(h / (1.0 + h.abs()))

class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(32 * 16, 10))
        for m in self.features:
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.normal_(0, 0.2)
                m.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.head(self.features(x))

class Gelu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)

class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 512), Gelu(), nn.Linear(512, 512), Gelu(), nn.Linear(512, 10))

    def forward(self, x):
        return self.layers(x)
'''
PUBLIC = (
    Model("Gates", ((256, 16),), ("the elementwise network", "逐元素运算为主的网络"), must_be_faster=True),
    Model("ConvNet", ((8, 3, 32, 32),), ("the convolutional network", "卷积网络")),
    Model("MLP", ((640, 128),), ("the MLP", "多层感知机")),
)

REFERENCE = """
models = {}

def build(cls, seed):
    torch.manual_seed(seed)
    with torch.inference_mode(False):
        models[cls] = globals()[cls]().eval()
    return {k: v for k, v in models[cls].state_dict().items()}

def exact(cls, *inputs):
    import copy
    return copy.deepcopy(models[cls]).double()(*[x.double() for x in inputs])

def run(cls, *inputs):
    return models[cls](*inputs)
"""

# Runs in the answer's process.
ANSWERING = """
import os
fast = {}

def facts(model):
    modules = dict(model.named_modules())
    return (type(model).__name__, {k: v.clone() for k, v in model.state_dict().items()},
            {n: m.training for n, m in modules.items()},
            {n: sum(len(getattr(m, h)) for h in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")) for n, m in modules.items()},
            {n: "forward" in vars(m) for n, m in modules.items()},
            {n: p.requires_grad for n, p in model.named_parameters()},
            {n: (id(m), type(m), m._compiled_call_impl is None) for n, m in modules.items()},
            {k: v.stride() for k, v in model.state_dict().items()})

def optimise(cls, state, *example):
    with torch.inference_mode(False):
        model = globals()[cls]()
        model.load_state_dict({k: v.clone() for k, v in state.items()})
        model.eval()
        example = tuple(x.clone() for x in example)
        before = facts(model)
        fast[cls] = answer["optimise"](model, example[0] if len(example) == 1 else example)
        after = facts(model)
    changed = [what for what, b, a in zip(("class", "parameters", "training flag", "hooks", "forward", "requires_grad", "layers", "memory format"), before, after)
               if (b != a if what != "parameters" else b.keys() != a.keys() or not all(torch.equal(b[k], a[k]) for k in b))]
    return callable(fast[cls]), type(fast[cls]).__name__, changed

def run(cls, *inputs):
    return fast[cls](*inputs)

def save(cls, path):
    import numpy as np
    answer["save"](fast[cls], path)
    found = {}
    for name in sorted(os.listdir(".")):
        if name.startswith(path):
            if os.path.islink(name) or not os.path.isfile(name):
                return name
            with open(name, "rb") as f:
                found[name] = np.frombuffer(f.read(), np.uint8)
    return found
"""
LOADING = """
loaded = {}

def load(key, files, path):
    import torch
    for name, data in files.items():
        with open(name, "wb") as f:
            f.write(data.tobytes())
    with torch.inference_mode(False):
        loaded[key] = answer["load"](path)
    return callable(loaded[key])

def run(key, *inputs):
    return loaded[key](*inputs)
"""


# All that is said of a hidden model: what comes from the answer's process could describe it.
HIDDEN_WRONG = (
    "On a network you have not seen the fast version is not right: it can't be called, it computes something else than the model, or `optimise` or a"
    " call changed the model or its inputs. Try your answer on models of your own, with several inputs and with modules of other kinds.",
    "对一个你没有见过的网络，快速版本不正确：它不能被调用、结果与原模型不同，或者 `optimise` 或一次调用改动了模型或输入。请用你自己的其他模型试一试，"
    "例如有多个输入的、含有其他类型模块的模型。",
)
HIDDEN_NOT_SAVED = (
    "The saved file of a network you have not seen is not right: `save` writes exactly one regular file, and what `load` makes of it, in a process without"
    " the model's class, computes what the model computes.",
    "一个你没有见过的网络的保存文件不正确：`save` 应只写一个普通文件；在没有模型类的进程中，`load` 得到的对象应与原模型结果一致。",
)


class Wrong(Exception):
    """What a model's outputs or state show to be wrong, in both languages."""

    def __init__(self, en: str, zh: str):
        super().__init__(en)
        self.en, self.zh = en, zh


def models(session: Session) -> tuple[str, list[Model], list[Model]]:
    """The source of all models to judge on, the public models and, when grading, the hidden ones; each list in random order."""
    source, hidden = MODELS, []
    if session.hidden is not None:
        namespace: dict = {"Model": Model}
        exec((session.hidden / "models.py").read_text(encoding="utf-8"), namespace)
        source += namespace["SOURCE"]
        hidden = namespace["HIDDEN"]
    return source, *([some[i] for i in session.rng.permutation(len(some))] for some in (PUBLIC, hidden))


def judge(session: Session) -> Verdict:
    parts = Parts(SLUG, MAX_POINTS)
    evidence: dict = {"models": {}}
    source, public, hidden = models(session)
    chosen = public + hidden
    limits = {"memory_bytes": 6 << 30, "cpu_s": 900}
    reference = session.trusted(source + REFERENCE)
    hosts, unsaved = [], None
    with parts.attempt("correct", 4):
        try:
            for some, first in ((public, 0), (hidden, len(public))):
                if not some:
                    continue
                if not hosts or hosts[-1].closed:  # by its own `save`
                    hosts.append(_answering(session, source, limits))
                host = hosts[-1]
                host.quotes = some is public  # no exception may tell what a hidden model looks like
                _correct(session, host, reference, some, evidence)
                unsaved = unsaved or _not_saved(session, host, reference, some, first, limits)
        except Wrong as wrong:
            parts.add("correct", 4, False, *_told(wrong, some is hidden))
        else:
            parts.add("correct", 4, True, f"The fast versions of all {len(chosen)} models compute what the models compute.",
                      f"全部 {len(chosen)} 个模型的快速版本都与原模型结果一致。")  # fmt: skip
    if not parts.items[0].ok:
        return parts.verdict(evidence=evidence)
    parts.add("saved", 2, unsaved is None, *(unsaved or (
        "Each saved file, loaded where the model's class is absent, computes the same.", "每个保存的文件在没有模型类的进程中加载后，计算结果都一致。")))  # fmt: skip
    with parts.attempt("fast", 4):
        if host.closed or len(hosts) > 1:  # `save` ended its process: the fast versions are gone, and made once more
            host = _answering(session, source, limits)
            for some in (public, hidden):
                host.quotes = some is public
                try:
                    _correct(session, host, reference, some, evidence)
                except Wrong as wrong:  # it was right before: by chance, or it counts its calls
                    parts.add("fast", 4, False, *_told(wrong, some is hidden))
                    return parts.verdict(evidence=evidence)
        _fast(session, host, reference, public, hidden, parts, evidence)
    return parts.verdict(evidence=evidence, figure=_figure(chosen, evidence))


def _answering(session, source: str, limits: dict):
    """A process of the answer that knows the models and has made no fast version yet."""
    host = session.answer(**limits)
    host.define(source + ANSWERING)
    return host


def _told(wrong: Wrong, secret: bool) -> tuple[str, str]:
    return HIDDEN_WRONG if secret else (wrong.en, wrong.zh)


def _inputs(session, model: Model) -> list[Tensor]:
    return [Tensor(session.rng.standard_normal(shape).astype(np.float32)) for shape in model.shapes]


def _compare(value, expected: Tensor, inputs, after, model: Model, what_en: str, what_zh: str) -> None:
    """Raises Wrong where an output is not the model's. `expected` float64; `inputs` as sent, `after` as they came back."""
    shape = expected.array.shape
    if type(value) is not Tensor or value.dtype != "float32" or value.array.shape != shape:
        got = type_name(value) + (f" of shape {value.array.shape}" if type(value) is Tensor else "")
        raise Wrong(f"{what_en} of {model.name[0]} returned {got}; the model returns a float32 tensor of shape {shape}.",
                    f"{model.name[1]}的{what_zh}返回了 {got}；原模型返回形状为 {shape} 的 float32 张量。")  # fmt: skip
    with np.errstate(all="ignore"):
        error = np.abs(value.array - expected.array) / np.maximum(1, np.abs(expected.array))
    worst = float("inf") if np.isnan(error).any() else float(error.max(initial=0))
    if worst > TOLERANCE:
        raise Wrong(
            f"{what_en} of {model.name[0]} is off by {worst:.2g} (relative to max(1, |y|)); {TOLERANCE:g} is allowed. Is it computed in lower"
            " precision, with dropout on, or from inputs seen before? Every call has new values.",
            f"{model.name[1]}的{what_zh}偏差为 {worst:.2g}（相对于 max(1, |y|)），允许 {TOLERANCE:g}。是否降低了精度、没有关闭 dropout，"
            "或者沿用了以前的输入？每次调用的数值都是新的。",
        )
    for sent, back in zip(inputs, after, strict=True):
        if type(back) is not Tensor or not np.array_equal(sent.array, back.array):
            raise Wrong(f"{what_en} of {model.name[0]} changed its inputs.", f"{model.name[1]}的{what_zh}改动了输入。")


def _correct(session, host, reference, some, evidence) -> None:
    """Raises Wrong where the fast version of a model is none, or computes something else."""
    for model in some:
        state = reference.call("build", model.cls, int(session.rng.integers(1 << 31)))
        example = _inputs(session, model)
        reply, seconds = host.timed_call("$optimise", model.cls, state, *example, timeout_s=COMPILE_S, inference=False)
        if type(reply) is not tuple or [type(r) for r in reply] != [bool, str, list]:
            raise AnswerFailed("protocol", "The reply was malformed.", "返回的数据格式不正确。")
        callable_, kind, changed = reply
        evidence["models"][model.name[0]] = {"optimise_s": seconds}
        if not callable_:
            raise Wrong(f"`optimise` returned {kind}, which can't be called.", f"`optimise` 返回了 {kind}，它不能被调用。")
        if changed:
            raise Wrong(f"`optimise` changed the model it was given ({', '.join(changed)}): work on a copy.",
                        f"`optimise` 改动了传入的模型（{', '.join(changed)}）：请使用副本。")  # fmt: skip
        for _ in range(3):
            inputs = _inputs(session, model)
            value, after = host.call("$run", model.cls, *inputs, timeout_s=COMPILE_S, echo=True)
            _compare(value, reference.call("exact", model.cls, *inputs), inputs, after[1:], model, "The fast version", "快速版本")


def _not_saved(session, host, reference, some, first: int, limits) -> tuple[str, str] | None:
    """What is wrong with the files of some models, in both languages; None where each, loaded in a fresh process, computes the same.

    first: the number in the first file's name.
    """
    try:
        fresh = session.answer(**limits)
        fresh.quotes = host.quotes
        fresh.define(LOADING)
        for i, model in enumerate(some, first):
            path = f"{FILE_NAME}{i}"
            files = host.call("$save", model.cls, path, timeout_s=COMPILE_S, inference=False)
            if type(files) is not dict or len(files) != 1:
                what = f"`{files}`, which is not a regular file" if type(files) is str else f"{len(files)} files" if type(files) is dict else "nothing"
                raise Wrong(f"`save(fast, {path!r})` left {what}: write exactly one regular file at that path.",
                            f"`save(fast, {path!r})` 之后得到 {what}：请在该路径上只写一个普通文件。")  # fmt: skip
            if not fresh.call("$load", model.cls, files, path, timeout_s=COMPILE_S, inference=False):
                raise Wrong("`load` returned something that can't be called.", "`load` 返回的对象不能被调用。")
            inputs = _inputs(session, model)
            value, after = fresh.call("$run", model.cls, *inputs, timeout_s=COMPILE_S, echo=True)
            _compare(value, reference.call("exact", model.cls, *inputs), inputs, after[1:], model, "The loaded copy", "重新加载的副本")
        fresh.close()
    except Wrong as wrong:
        return (wrong.en, wrong.zh) if host.quotes else HIDDEN_NOT_SAVED
    except AnswerFailed as error:
        return (
            f"Saving or loading failed. In the process that loads there is only the file, your answer cells and torch: the model's class is absent. {error.en}",
            f"保存或加载失败。加载时的进程里只有该文件、你的答案单元格和 torch，没有模型的类。{error.zh}",
        )
    return None


def _fast(session, host, reference, public, hidden, parts, evidence) -> None:
    states, texts_en, texts_zh = [], [], []
    chosen = public + hidden
    for model in sorted(chosen, key=lambda m: not m.must_be_faster):
        host.quotes, outputs = model in public, []

        def timed(where, name, model=model, outputs=outputs) -> float:
            inputs = _inputs(session, model)
            value, seconds = where.timed_call(name, model.cls, *inputs, timeout_s=COMPILE_S)
            if where is host:
                outputs.append((inputs, value))
            return seconds

        threshold = FASTER_BY if model.must_be_faster else NEVER_BELOW
        try:
            found = session.paired_ratio(lambda: timed(reference, "run"), lambda: timed(host, "$run"), threshold, max_s=15)
            # only now: between the samples it would warm the caches for one of the two
            for inputs, value in outputs:
                _compare(value, reference.call("exact", model.cls, *inputs), [], [], model, "The fast version", "快速版本")
        except Wrong as wrong:
            parts.add("fast", 4, False, *_told(wrong, model not in public))
            return
        evidence["models"][model.name[0]]["comparison"] = found.as_dict()
        states.append(found.faster)
        if found.faster:
            continue
        wish_en = f"more than {threshold:g}× is asked" if model.must_be_faster else f"it must not fall below {threshold:g}×"
        wish_zh = f"要求大于 {threshold:g}×" if model.must_be_faster else f"不得低于 {threshold:g}×"
        if found.faster is None:
            texts_en.append(f"On {model.name[0]} it could not be told ({found}; {wish_en}).")
            texts_zh.append(f"在{model.name[1]}上无法判定（{found}；{wish_zh}）。")
        elif model.must_be_faster:
            texts_en.append(f"On {model.name[0]} the fast version runs at {found.ratio:.3g}× the model's speed ({found}); {wish_en}. Each"
                            " elementwise operation is a pass through memory of its own: they want to be fused into one.")  # fmt: skip
            texts_zh.append(f"在{model.name[1]}上，快速版本的速度是原模型的 {found.ratio:.3g} 倍（{found}）；{wish_zh}。"
                            "每个逐元素运算都要单独读写一遍内存：应把它们融合成一个。")  # fmt: skip
        else:
            texts_en.append(f"On {model.name[0]} it is slower than the model: {found.ratio:.3g}× ({found}); {wish_en}. Where there is nothing to"
                            " fuse, keep the model as it is.")  # fmt: skip
            texts_zh.append(f"在{model.name[1]}上比原模型慢：{found.ratio:.3g} 倍（{found}）；{wish_zh}。没有可融合的运算时，保持原样即可。")
    ok = False if False in states else None if None in states else True
    if ok:
        listed = {m.name: evidence["models"][m.name[0]]["comparison"]["ratio"] for m in chosen}
        texts_en = [f"Speed against the models: {', '.join(f'{n[0]} {r:.3g}×' for n, r in listed.items())}."]
        texts_zh = [f"与原模型相比的速度：{'，'.join(f'{n[1]} {r:.3g}×' for n, r in listed.items())}。"]
    parts.add("fast", 4, ok, " ".join(texts_en), "".join(texts_zh))


def _figure(chosen, evidence) -> bytes | None:
    from perflab import plot

    shown = [(m.name[0], evidence["models"][m.name[0]].get("comparison"), m) for m in chosen]
    shown = [s for s in shown if s[1]]
    if not shown:
        return None
    fig, ax = plot.subplots(height_in=0.9 + 0.5 * len(shown))
    for i, (_, c, model) in enumerate(shown):
        ax.barh(i, c["ratio"], height=0.5, color=plot.PALETTE[0], xerr=[[c["ratio"] - c["low"]], [c["high"] - c["ratio"]]], ecolor=plot.GREY)
        least = FASTER_BY if model.must_be_faster else NEVER_BELOW
        ax.plot([least, least], [i - 0.4, i + 0.4], color=plot.PALETTE[1])
    ax.set(yticks=range(len(shown)), yticklabels=[textwrap.fill(s[0], 24) for s in shown], xlabel="speed against the model (×), and what is asked")
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    return plot.png(fig, dpi=100)
