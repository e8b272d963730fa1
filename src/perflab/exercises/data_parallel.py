"""12.5: split the data of a training step over ranks, and synchronise the gradients.

Every rank is a process of its own; all are linked to all, over wires that count bytes. The judge trains the same
network on one process in float64 and compares after every step.
"""

from __future__ import annotations

import numpy as np

from perflab.exercises._ranks import Group
from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed
from perflab.wire import Tensor, type_name

SLUG = "data-parallel"
TITLE = ("Splitting the data", "拆分数据")
ENTRY_POINTS = ("shard", "synchronise", "train_step")
MAX_POINTS = 10
TIMED = False  # counts and values only

WORLDS = (1, 2, 3, 4)
STEPS = 4  # in each run
TOLERANCE = 1e-5
FEWEST, MOST = 0.9, 1.1
# Smooth networks and small steps: rounding moves a parameter by 2e-7 in four steps (the most in 1,200 judgements), training
# by 2e-4 and more in each. With ReLU, whose slope jumps, and steps of up to 0.5, rounding alone left the tolerance in one of a hundred.
LEARNING_RATES = 0.05, 0.1

# Runs in every rank's process and in the judge's own.
_MODELS = """
import torch
from torch import nn


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 10))

    def forward(self, x):
        return self.layers(x)


class Convolutional(nn.Module):
    # The first layer is frozen, and one layer takes no part at all.
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3)
        self.second = nn.Conv2d(6, 16, 3)
        self.spare = nn.Linear(2, 1)
        self.last = nn.Linear(256, 10)
        for p in self.first.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        x = torch.tanh(self.first(x.reshape(-1, 1, 8, 8)))
        return self.last(torch.sigmoid(self.second(x)).flatten(1))


def build(kind, values, dtype):
    model = {"perceptron": Perceptron, "convolutional": Convolutional}[kind]().to(dtype)
    with torch.no_grad():
        for p, value in zip(model.parameters(), values):
            p.copy_(value)
    return model
"""

_HELPERS = _MODELS + """
state = {}

def prepare(kind, values):
    model = build(kind, values, torch.float32)
    state.update(model=model, parameters=list(model.parameters()), rows=0)
    def count(module, inputs):
        state["rows"] += len(inputs[0])
    model.register_forward_pre_hook(count)

def step(x, y, weight, world, rank, lr):
    state["rows"] = 0
    kept = x.clone(), y.clone(), weight.clone()
    answer["train_step"](state["model"], (x, y, weight), world, rank, lr)
    as_bits = lambda t: t.view(torch.int32) if t.dtype == torch.float32 else t  # NaN is equal to itself here
    unchanged = all(torch.equal(as_bits(a), as_bits(b)) for a, b in zip(kept, (x, y, weight)))
    return state["rows"], unchanged

def fetch():
    now = list(state["model"].parameters())
    same = len(now) == len(state["parameters"]) and all(a is b for a, b in zip(now, state["parameters"]))
    return same, [p.detach() for p in now]

def shard(x, y, weight, rank, world):
    return answer["shard"]((x, y, weight), rank, world)
"""

_SINGLE = _MODELS + """
state = {}

def prepare(kind, values):
    state["model"] = build(kind, values, torch.float64)

def trainable():
    return [p.requires_grad for p in state["model"].parameters()]

def shapes(kind):
    model = build(kind, [], torch.float32)
    return [list(p.shape) for p in model.parameters()]

def step(x, y, weight, lr):
    model = state["model"]
    model.zero_grad()
    losses = nn.functional.cross_entropy(model(x.double()), y, reduction="none")
    ((losses * weight.double()).sum() / weight.double().sum()).backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= lr * p.grad
    return [p.detach() for p in model.parameters()]
"""


def judge(session: Session) -> Verdict:
    parts, evidence = Parts(SLUG, MAX_POINTS), {}
    with parts.attempt("shard", 2):
        _judge_shard(session, parts, evidence)
    single = session.trusted(_SINGLE)
    rows: list[dict] = []
    trained = False
    with parts.attempt("training", 4):
        trained = _judge_training(session, single, parts, rows)
    evidence["runs"] = rows
    if not trained:
        for name, en, zh in (("split", "the work was split", "计算是否分摊"), ("bytes", "the bytes sent", "发送的字节数")):
            parts.add(name, 2, False, f"Not judged: {en}. The parameters must be right first.", f"未评判：{zh}。先要让参数正确。")
        return parts.verdict(evidence=evidence, figure=_figure(rows))
    _judge_split(parts, rows)
    if parts.items[-1].ok:
        _judge_bytes(parts, rows)
    else:
        parts.add("bytes", 2, False, "Not judged: the bytes sent. They count once each rank computes on its shard alone.",
                  "未评判：发送的字节数。每个进程只计算自己那一份之后才计入。")  # fmt: skip
    return parts.verdict(evidence=evidence, figure=_figure(rows))


# ---------------------------------------------------------------- shard


def _judge_shard(session, parts, evidence) -> None:
    with Group(session, 1, bandwidth_bytes_per_s=None, helpers=_HELPERS, group=False) as group:
        tried = 0
        for world in (1, 2, 3, 4, 7):
            for n in (1, world - 1 or 1, world, 2 * world + 1, int(session.rng.integers(20, 60))):
                batch = _batch(session.rng, n)
                shards = [group.hosts[0].call("$shard", *batch, rank, world, inference=False) for rank in range(world)]
                mistake = _shard_mistake(batch, shards, world)
                if mistake:
                    parts.add("shard", 2, False, f"`shard` of {n} examples over {world} ranks: {mistake[0]}",
                              f"把 {n} 个样本分给 {world} 个进程时，`shard`：{mistake[1]}")  # fmt: skip
                    return
                tried += 1
    evidence["shards"] = tried
    parts.add("shard", 2, True, f"`shard` was right in {tried} cases: disjoint, complete, equal within one.",
              f"`shard` 在 {tried} 种情形下都正确：互不重叠、没有遗漏、大小至多差 1。")  # fmt: skip


def _shard_mistake(batch, shards, world) -> tuple[str, str] | None:
    whole = [t.array for t in batch]
    names = {_row(whole, i): i for i in range(len(whole[0]))}
    owner: dict[int, int] = {}
    sizes = []
    for rank, shard in enumerate(shards):
        if type(shard) is not tuple or len(shard) != 3 or not all(type(t) is Tensor for t in shard):
            got = type_name(shard) if type(shard) is not tuple else f"a tuple of {[type_name(t) for t in shard][:4]}"
            return (f"it must return a tuple (x, y, weight) of tensors, as the batch is; it returned {got}.",
                    f"应像批量那样返回张量元组 (x, y, weight)；实际返回 {got}。")  # fmt: skip
        arrays = [t.array for t in shard]
        if any(a.dtype != w.dtype or a.ndim != w.ndim or a.shape[1:] != w.shape[1:] for a, w in zip(arrays, whole, strict=True)):
            return ("x, y and weight must keep their dtypes and the shape of an example.", "x、y、weight 的数据类型和单个样本的形状必须保持不变。")
        if len({len(a) for a in arrays}) != 1:
            return (f"rank {rank} has {[len(a) for a in arrays]} entries of x, y and weight.",
                    f"第 {rank} 号进程的 x、y、weight 个数不同：{[len(a) for a in arrays]}。")  # fmt: skip
        for i in range(len(arrays[0])):
            example = names.get(_row(arrays, i))
            if example is None:
                return (f"rank {rank} has an example that is not in the batch: x, y and weight must be cut alike.",
                        f"第 {rank} 号进程得到了批量中没有的样本：x、y、weight 必须按同样方式切分。")  # fmt: skip
            if example in owner:
                return (f"ranks {owner[example]} and {rank} share an example; it would count twice.",
                        f"第 {owner[example]} 号和第 {rank} 号进程得到了同一个样本，它会被算两次。")  # fmt: skip
            owner[example] = rank
        sizes.append(len(arrays[0]))
    if len(owner) != len(names):
        missing = len(names) - len(owner)
        return (f"{missing} example(s) are on no rank. What happens to the remainder of {len(names)} ÷ {world}?",
                f"有 {missing} 个样本不在任何进程上。{len(names)} ÷ {world} 的余数到哪里去了？")  # fmt: skip
    if max(sizes) - min(sizes) > 1:
        return (f"the sizes are {sizes}; they may differ by at most 1, since all wait for the slowest.",
                f"各份大小为 {sizes}；至多只能差 1，因为所有进程都要等最慢的那个。")  # fmt: skip
    return None


def _row(arrays, i: int) -> bytes:
    return b"".join(np.ascontiguousarray(a[i]).tobytes() for a in arrays)


# ---------------------------------------------------------------- training


def _batch(rng, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """(x [n, 64] float32, y [n] int64, weight [n] float32 > 0), the weights very unequal."""
    weight = rng.uniform(0.05, 1.0, n) ** 3 * 4
    return (
        Tensor(rng.standard_normal((n, 64)).astype(np.float32)),
        Tensor(rng.integers(0, 10, n)),
        Tensor(weight.astype(np.float32)),
    )


def _judge_training(session, single, parts, rows) -> bool:
    for world in WORLDS:
        # Divisible, with a remainder, and with fewer examples than ranks, so that some shards are empty.
        sizes = [int(session.rng.integers(3, 6)) * world + 1, max(world - 1, 1), 8 * world, 1]
        with Group(
            session, world, bandwidth_bytes_per_s=None, helpers=_HELPERS, collectives=("all_reduce",), group=world > 1, pinned=False
        ) as group:
            for kind in ("perceptron", "convolutional"):
                shapes = single.call("shapes", kind, inference=False)
                values = [_start(session.rng, shape) for shape in shapes]
                batches = [_batch(session.rng, n) for n in sizes]
                row = {"model": kind, "world": world, "sizes": sizes}
                rows.append(row)
                mistake = _train(group, single, values, batches, float(session.rng.uniform(*LEARNING_RATES)), row)
                if mistake:
                    parts.add("training", 4, False, f"World {world}, {kind} network: {mistake[0]}", f"world = {world}，{kind} 网络：{mistake[1]}")
                    return False
    return parts.add(
        "training", 4, True,
        f"After each of {STEPS} steps the parameters equalled training on one process within {TOLERANCE:g}, and were the same on every rank,"
        f" in worlds {WORLDS[0]} to {WORLDS[-1]}.",
        f"在 world 为 {WORLDS[0]} 到 {WORLDS[-1]} 时，{STEPS} 步中每一步之后参数都与单进程训练相差不超过 {TOLERANCE:g}，且各进程完全一致。",
    )  # fmt: skip


def _start(rng, shape) -> Tensor:
    """Initial values of a parameter."""
    return Tensor((rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))).astype(np.float32))


def _train(group, single, values, batches, lr, row) -> tuple[str, str] | None:
    """Trains on a group of ranks and on one process; fills `row`; what is wrong, or None."""
    kind, world = row["model"], row["world"]
    single.call("prepare", kind, values, inference=False)
    trainable = single.call("trainable", inference=False)
    row["parameter_bytes"] = int(sum(v.array.nbytes for v, t in zip(values, trainable, strict=True) if t))
    row["sent"], row["rows"] = [], []
    before = [v.array for v in values]
    group.call("$prepare", [(kind, values)] * world)
    for number, batch in enumerate(batches, 1):
        n = len(batch[0].array)
        group.wires.counts(reset=True)
        try:
            reports, _ = group.call("$step", [(*batch, world, rank, lr) for rank in range(world)])
        except AnswerFailed as error:
            empty = n < world
            raise AnswerFailed(
                error.kind,
                f"World {world}, step {number} with {n} examples: {error.en}"
                + (" A rank whose shard is empty has no gradient, but must take part all the same." if empty else ""),
                f"world = {world}，第 {number} 步，{n} 个样本：{error.zh}"
                + ("分到空数据的进程没有梯度，但同样要参与同步。" if empty else ""),
            ) from None
        if not all(type(r) is tuple and len(r) == 2 for r in reports):
            raise AnswerFailed("protocol", "The reply was malformed.", "返回的数据格式不正确。")
        sent = [0] * world
        foreign = 0
        for (source, _), count in group.wires.counts().items():
            sent[source] += count["message_bytes"]  # without the headers: many small messages are no sin
            foreign += count["foreign"]
        if foreign:
            raise AnswerFailed(
                "protocol", f"{foreign} bytes went over the links that torch.distributed did not send.",
                f"链路上出现了 {foreign} 字节不是由 torch.distributed 发送的数据。",
            )  # fmt: skip
        row["sent"].append(sent)
        row["rows"].append([r[0] if type(r[0]) is int else n for r in reports])  # what is no count was tampered with
        expected = [t.array for t in single.call("step", *batch, lr, inference=False)]
        fetched, _ = group.call("$fetch", [()] * world)
        mistake = _parameter_mistake(before, expected, fetched, trainable, number, world)
        if mistake:
            return mistake
        if not all(r[1] is True for r in reports):
            return "`train_step` changed the batch.", "`train_step` 改动了批量数据。"
        before = expected
    row["leaning"] = world > 1 and _leaning(group, single, before, batches[2], trainable, world, lr)
    return None


def _leaning(group, single, before, batch, trainable, world, lr) -> bool:
    """Whether the next step goes wrong on a rank when the rows that `shard` gives to others hold NaN.

    The count of rows in the network's hook is the answer's process's own word for it; this is not.
    """
    shards = [host.call("$shard", *batch, rank, world, inference=False) for rank, host in enumerate(group.hosts)]
    if _shard_mistake(batch, shards, world):  # judged by itself
        return False
    x, y, weight = batch
    whole = [t.array for t in batch]
    given = []
    for rank, shard in enumerate(shards):
        arrays = [t.array for t in shard]
        own = {_row(arrays, i) for i in range(len(arrays[0]))}
        kept = np.array([_row(whole, i) in own for i in range(len(x.array))])
        given.append((Tensor(np.where(kept[:, None], x.array, np.float32("nan"))), y, weight, world, rank, lr))
    group.call("$step", given)
    expected = [t.array for t in single.call("step", *batch, lr, inference=False)]
    fetched, _ = group.call("$fetch", [()] * world)
    return _parameter_mistake(before, expected, fetched, trainable, STEPS + 1, world) is not None


def _parameter_mistake(before, expected, fetched, trainable, number, world) -> tuple[str, str] | None:
    for rank, (same, parameters) in enumerate(fetched):
        got = [t.array if type(t) is Tensor else None for t in parameters]
        if same is not True or len(got) != len(expected) or any(a is None or a.shape != e.shape for a, e in zip(got, expected, strict=True)):
            return ("the model's parameters are no longer the same tensors: update them in place.",
                    "模型的参数已经不是原来的张量：请就地更新。")  # fmt: skip
        for i, (a, e) in enumerate(zip(got, expected, strict=True)):
            off = np.abs(a - e) > TOLERANCE * np.maximum(1.0, np.abs(e))
            if off.any() or not np.isfinite(a).all():
                at = np.unravel_index(int(np.argmax(off)), off.shape)
                hint = _update_hint(before[i], e, a, trainable[i], number, world)
                return (f"after step {number}, parameter {i} on rank {rank} holds {a[at]:.7g} where one process has {e[at]:.7g}. {hint[0]}",
                        f"第 {number} 步之后，第 {rank} 号进程的第 {i} 个参数是 {a[at]:.7g}，单进程训练得到 {e[at]:.7g}。{hint[1]}")  # fmt: skip
    first = [t.array.tobytes() for t in fetched[0][1]]
    for rank, (_, parameters) in enumerate(fetched):
        if [t.array.tobytes() for t in parameters] != first:
            return (f"after step {number}, ranks 0 and {rank} differ in the last bits. They drift apart from here on: every rank must"
                    " add the same numbers in the same order.",
                    f"第 {number} 步之后，第 0 号和第 {rank} 号进程的参数在最后几位上不同，此后会越差越远：各进程必须按相同的顺序累加相同的数。")  # fmt: skip
    return None


def _update_hint(before, expected, got, trainable, number, world) -> tuple[str, str]:
    if not trainable:
        return "This parameter is frozen (requires_grad is False).", "这个参数是冻结的（requires_grad 为 False）。"
    moved, should = got - before, expected - before
    clear = np.abs(should) > max(0.1 * np.abs(should).max(initial=0), 10 * TOLERANCE)
    ratios = moved[clear] / should[clear]
    ratio = float(np.median(ratios)) if clear.any() else float("nan")
    if abs(ratio) < 1e-3:
        return "It did not move in this step.", "这一步它没有变化。"
    if world > 1 and clear.any() and np.mean(np.abs(ratios * world - 1) < 0.05) > 0.9:
        return (f"It moved {ratio:.3g} of the way: the sum over ranks is asked for, not the mean.",
                f"它只走了应走的 {ratio:.3g}：题目要求对各进程求和，而不是求平均。")  # fmt: skip
    if world > 1 and 1.05 < ratio < 1.1 * world:
        return ("It moved too far. Divide each loss by Σ weight of the whole batch, not of the shard; does every rank use only its shard?",
                "它走得太远。各进程的损失应除以整个批量的 Σ weight，而不是各份自己的；每个进程是否只用了自己那一份？")  # fmt: skip
    if number > 1:
        return ("The first step was right: are old gradients still in .grad, and what about an empty shard?",
                "第一步是对的：.grad 里是否还留着旧梯度？空的那一份又如何处理？")  # fmt: skip
    return ("Do the shards together cover the batch? Loss = Σ weight·cross_entropy / Σ weight. Divide by Σ weight of the whole batch, not of the shard: a mean of the shards' means is"
            " something else.",
            "各份合起来是否恰好是整个批量？损失 = Σ weight·cross_entropy / Σ weight，其中除数是整个批量的 Σ weight，而不是各份自己的：各份平均值的平均是另一回事。")  # fmt: skip


# ---------------------------------------------------------------- the work and the bytes


def _judge_split(parts, rows) -> None:
    for row in rows:
        for n, seen in zip(row["sizes"], row["rows"], strict=True):
            most = -(-n // row["world"])
            if max(seen) > most:
                rank = int(np.argmax(seen))
                parts.add(
                    "split", 2, False,
                    f"World {row['world']}, {n} examples: rank {rank} ran the network on {seen[rank]} of them, its share is {most}. Each rank"
                    " computes on its shard alone.",
                    f"world = {row['world']}，{n} 个样本：第 {rank} 号进程对其中 {seen[rank]} 个做了前向计算，而它的份额是 {most} 个。每个进程只计算自己那一份。",
                )  # fmt: skip
                return
        if row["leaning"]:
            parts.add(
                "split", 2, False,
                f"World {row['world']}, {row['model']} network: when the examples that `shard` gives to other ranks hold NaN, the parameters"
                " go wrong. `train_step` computes on more than its shard, or on another one than `shard` returns.",
                f"world = {row['world']}，{row['model']} 网络：把 `shard` 分给其他进程的样本换成 NaN 之后，参数就错了。"
                "`train_step` 用到的数据不止自己那一份，或者与 `shard` 返回的不是同一份。",
            )  # fmt: skip
            return
    parts.add("split", 2, True, "Each rank ran the network on its own shard only.", "每个进程只对自己那一份数据做计算。")


def _judge_bytes(parts, rows) -> None:
    for row in rows:
        world, size = row["world"], row["parameter_bytes"]
        if world == 1:
            continue
        fair = 2 * (world - 1) / world * size
        for number, sent in enumerate(row["sent"], 1):
            for rank, count in enumerate(sent):
                if FEWEST * fair <= count <= MOST * fair:
                    continue
                more = count > fair
                en = ("A server that collects all gradients sends too much; a ring (`dist.all_reduce`) shares the load."
                      if more else "Which rank's gradients never left it?")  # fmt: skip
                zh = ("由一个进程收集全部梯度会使它发送过多；环（`dist.all_reduce`）能分摊负载。" if more else "哪些梯度没有发出去？")
                parts.add(
                    "bytes", 2, False,
                    f"World {world}, {row['model']} network, step {number}: rank {rank} sent {count} bytes, {count / fair:.2f} times"
                    f" 2(n−1)/n × {size} parameter bytes; {FEWEST} to {MOST} is asked for. {en}",
                    f"world = {world}，{row['model']} 网络，第 {number} 步：第 {rank} 号进程发送了 {count} 字节，是 2(n−1)/n × {size}"
                    f" 参数字节的 {count / fair:.2f} 倍；应在 {FEWEST} 到 {MOST} 倍之间。{zh}",
                )  # fmt: skip
                return
    parts.add("bytes", 2, True, f"Each rank sent {FEWEST} to {MOST} times 2(n−1)/n of the parameters' bytes, in every step.",
              f"每个进程每一步发送的字节数都在参数字节数的 2(n−1)/n 的 {FEWEST} 到 {MOST} 倍之间。")  # fmt: skip


def _figure(rows) -> bytes | None:
    """What each rank sent and computed in every step, over what is asked of it."""
    from perflab import plot

    shown = [row for row in rows if row["world"] > 1 and row.get("sent")]
    if not shown:
        return None
    fig, (bytes_, examples) = plot.subplots(2, 1, height_in=4.2, sharex=True)
    ranks = [(rank, world) for world in WORLDS for rank in range(world) if any(row["world"] == world for row in shown)]
    for row in shown:
        world = row["world"]
        at = [ranks.index((rank, world)) for rank in range(world)]
        for ax, asked in ((bytes_, 2 * (world - 1) / world), (examples, 1)):
            ax.hlines(asked, at[0] - 0.4, at[-1] + 0.4, color=plot.ORANGE, linewidth=4, label="asked: 2(n−1)/n, and no more than a share")
        for n, sent, seen in zip(row["sizes"], row["sent"], row["rows"], strict=False):
            bytes_.plot(at, [count / row["parameter_bytes"] for count in sent], "o", color=plot.BLUE, label="your ranks, each step")
            examples.plot(at, [count / -(-n // world) for count in seen], "o", color=plot.BLUE)
    for ax, label in ((bytes_, "bytes sent ÷\nparameters"), (examples, "examples ÷\nshare")):
        ax.set(ylabel=label, ylim=(-0.1, 1.1 * ax.dataLim.y1))
    examples.set_xlabel("rank of world")
    examples.set_xticks(range(len(ranks)), [f"{rank} of {world}" for rank, world in ranks])
    plot.legend(fig, handles=[bytes_.lines[0], bytes_.collections[0]])
    return plot.png(fig)
