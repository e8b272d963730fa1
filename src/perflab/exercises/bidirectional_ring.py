"""12.6: speed up ring synchronisation by sending both ways.

Every rank is a process of its own; the links between neighbours are the judge's (perflab.wires), which paces and
counts them. What is judged: the sums, the bytes on each directed link, and the time against the judge's own
one-way ring over links of the same bandwidth, one after the other in random order.
"""

from __future__ import annotations

from statistics import median

import numpy as np

from perflab.exercises._ranks import Group
from perflab.judge import Parts, Session, Verdict
from perflab.launch import AnswerFailed
from perflab.wire import Tensor

SLUG = "bidirectional-ring"
TITLE = ("A ring that sends both ways", "双向发送的环")
ENTRY_POINTS = ("all_reduce",)
MAX_POINTS = 10

WORLDS = (1, 2, 3, 4, 5)
BIG = (1 << 18) + 3  # elements: a little over 1 MiB of float32, and not divisible by any world
LOAD_SLACK = 1.1
SPEEDUP = 1.5
TIMED_WORLD = 4
TIMED_ELEMENTS = 1 << 20  # 4 MiB
BANDWIDTH = 20e6  # bytes a second, each direction of each link: low enough that the processes' own work is small beside it
ONE_WAY_WITHIN = 1.15

# Runs in every rank's process; `state` keeps the tensor between the calls, so that its transfer isn't timed.
_HELPERS = """
state = {}

def prepare(x):
    state["x"] = x.clone()

def go(rank, world):
    returned = answer["all_reduce"](state["x"], rank, world)
    return returned is None

def fetch():
    return state["x"]
"""

# The classic ring of the chapter: everything travels to the right, first the partial sums, then the results.
ONE_WAY = """
import torch
import torch.distributed as dist

def all_reduce(tensor, rank, world):
    right, left = (rank + 1) % world, (rank - 1) % world
    chunks = tensor.tensor_split(world)
    buffer = torch.empty_like(chunks[0])

    def step(send, recv):
        works = [dist.P2POp(dist.irecv, recv, left), dist.P2POp(dist.isend, send, right)]
        for work in dist.batch_isend_irecv(works):
            work.wait()

    for i in range(world - 1):
        into = chunks[(rank - i - 1) % world]
        got = buffer[: into.numel()]
        step(chunks[(rank - i) % world], got)
        into += got
    for i in range(world - 1):
        step(chunks[(rank + 1 - i) % world], chunks[(rank - i) % world])
"""


class Ring:
    """A ring of ranks that runs the answer, or with `source` the judge's own code."""

    def __init__(self, session: Session, world: int, *, bandwidth_bytes_per_s: float | None, source: str | None = None):
        self.world = world
        pairs = [(rank, (rank + 1) % world) for rank in range(world)] if world > 1 else []
        self.group = Group(
            session, world, pairs=pairs, bandwidth_bytes_per_s=bandwidth_bytes_per_s, source=source, helpers=_HELPERS
        )

    def reduce(self, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], float]:
        """(what each rank's tensor holds afterwards, seconds). Raises AnswerFailed."""
        wires, group = self.group.wires, self.group
        wires.counts(reset=True)  # what is sent from here on counts, before the start too
        wires.hold()  # nothing may set out before the clock starts
        group.call("$prepare", [(Tensor(x),) for x in inputs])
        wires.release()
        try:
            nothing, seconds = group.call("$go", [(rank, self.world) for rank in range(self.world)])
        except AnswerFailed:
            self._refuse_foreign_bytes()  # where there are some, they are the reason
            raise
        wires.hold()
        self._refuse_foreign_bytes()
        results = group.call("$fetch", [()] * self.world)[0]
        wires.release()
        if not all(value is True for value in nothing):
            raise AnswerFailed(
                "value",
                "`all_reduce` must change `tensor` in place and return None; it returned a value.",
                "`all_reduce` 必须就地修改 `tensor` 并返回 None；它返回了一个值。",
            )
        for rank, (given, got) in enumerate(zip(inputs, results, strict=True)):
            if type(got) is not Tensor or got.array.shape != given.shape or got.array.dtype != given.dtype:
                raise AnswerFailed(
                    "value",
                    f"After `all_reduce` rank {rank}'s tensor no longer has its shape and dtype.",
                    f"`all_reduce` 之后，第 {rank} 号进程的张量形状或数据类型变了。",
                )
        return [got.array for got in results], seconds

    def _refuse_foreign_bytes(self) -> None:
        foreign = sum(count["foreign"] for count in self.group.wires.counts().values())
        if foreign:
            raise AnswerFailed(
                "protocol",
                f"{foreign} bytes went over the links that torch.distributed did not send. Use isend, irecv or batch_isend_irecv.",
                f"链路上出现了 {foreign} 字节不是由 torch.distributed 发送的数据。请使用 isend、irecv 或 batch_isend_irecv。",
            )

    def loads(self) -> dict[tuple[int, int], int]:
        """Bytes on each directed link since the last `reduce` began."""
        return {link: count["bytes"] for link, count in self.group.wires.counts().items()}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.group.close()


def judge(session: Session) -> Verdict:
    parts, evidence = Parts(SLUG, MAX_POINTS), {}
    loads: dict[int, dict] = {}
    with parts.attempt("correct", 4):
        _judge_correct(session, parts, evidence, loads)
    evidence["link_load"] = {w: {f"{a}->{b}": round(x, 4) for (a, b), x in load.items()} for w, load in loads.items()}
    right = all(part.ok for part in parts.items)
    if not right:
        for name, points, en, zh in (("links", 2, "The bytes on the links were", "链路上的字节数"), ("faster", 4, "The time was", "时间")):
            parts.add(name, points, False, f"{en} not judged: the sums must be right first.", f"{zh}未评判：先要让求和结果正确。")
        return parts.verdict(evidence=evidence, figure=_figure(loads, max(loads, default=1)))
    world = _judge_loads(parts, loads)
    found = None
    most = max(loads[TIMED_WORLD].values())
    limit = 2 * (TIMED_WORLD - 1) / TIMED_WORLD / SPEEDUP
    if most > limit:  # the fullest link alone takes too long, whatever a clock would say
        parts.add(
            "faster", 4, False,
            f"With {TIMED_WORLD} ranks one link carries {most:.2f} times the tensor. That alone takes more than {limit:.2f} N/B, and to be {SPEEDUP}"
            f" times as fast as the one-way ring, which takes {2 * (TIMED_WORLD - 1) / TIMED_WORLD:.2f} N/B, it may not.",
            f"{TIMED_WORLD} 个进程时，有一条链路要传张量的 {most:.2f} 倍，仅此就超过 {limit:.2f} N/B；而单向环需要"
            f" {2 * (TIMED_WORLD - 1) / TIMED_WORLD:.2f} N/B，要比它快 {SPEEDUP} 倍就不能这么久。",
        )  # fmt: skip
        return parts.verdict(evidence=evidence, figure=_figure(loads, world))
    with parts.attempt("faster", 4):
        found = _judge_speed(session, parts, evidence)
    return parts.verdict(evidence=evidence, figure=_figure(loads, world, found))


# ---------------------------------------------------------------- the sums


def _judge_correct(session, parts, evidence, loads) -> None:
    cases = 0
    for world in WORLDS:
        with Ring(session, world, bandwidth_bytes_per_s=None) as ring:
            for n, dtype in _cases(session.rng, world):
                inputs = [_numbers(session.rng, n, dtype) for _ in range(world)]
                try:
                    results, _ = ring.reduce(inputs)
                except AnswerFailed as error:
                    raise AnswerFailed(
                        error.kind,
                        f"{error.en} (world {world}, {n} elements of {dtype})",
                        f"{error.zh}（world = {world}，{n} 个 {dtype} 元素）",
                    ) from None
                mistake = _mistake(inputs, results)
                if mistake:
                    en, zh = mistake
                    parts.add(
                        "correct", 4, False,
                        f"World {world}, {n} elements of {dtype}: {en}", f"world = {world}，{n} 个 {dtype} 元素：{zh}",
                    )  # fmt: skip
                    return
                cases += 1
                if n == BIG:
                    loads[world] = {link: size / inputs[0].nbytes for link, size in ring.loads().items()}
    evidence["cases"] = cases
    parts.add("correct", 4, True, f"The sums were right in all {cases} cases, worlds 1 to 5, and the same on every rank.",
              f"在 world 为 1 到 5 的全部 {cases} 种情形下，求和结果都正确，且各进程一致。")  # fmt: skip


def _cases(rng, world: int) -> list[tuple[int, str]]:
    """Lengths and dtypes: none, one, fewer than ranks, not divisible, long. In random order, the long one last."""
    lengths = [0, 1, max(world - 1, 1), 2 * world + 1, int(rng.integers(50, 5000)) * world + int(rng.integers(1, world + 1))]
    cases = [(n, dtype) for n in lengths for dtype in ("float32", "int64")]
    return [cases[i] for i in rng.permutation(len(cases))] + [(BIG, "float32")]


def _numbers(rng, n: int, dtype: str) -> np.ndarray:
    if dtype == "int64":
        return rng.integers(-(1 << 40), 1 << 40, n)
    return rng.standard_normal(n).astype(np.float32)


def _mistake(inputs, results) -> tuple[str, str] | None:
    """What is wrong with the results, in English and Chinese; None when nothing is."""
    world, exact = len(inputs), inputs[0].dtype == np.int64
    total = np.sum(inputs, axis=0, dtype=inputs[0].dtype if exact else np.float64)
    allowed = 0 if exact else world * np.finfo(np.float32).eps * np.sum(np.abs(inputs), axis=0, dtype=np.float64)
    for rank, result in enumerate(results):
        wrong = ~(np.abs(result - total) <= allowed)
        if wrong.any():
            at = int(np.argmax(wrong))
            count = int(wrong.sum())
            hint_en, hint_zh = _sum_hint(inputs, result, total, rank)
            return (
                f"rank {rank} holds {result[at].item()!r} at index {at} where the sum is {total[at].item()!r}"
                f" ({count} of {len(total)} elements are wrong). {hint_en}",
                f"第 {rank} 号进程在下标 {at} 处是 {result[at].item()!r}，而总和是 {total[at].item()!r}"
                f"（{len(total)} 个元素中有 {count} 个不对）。{hint_zh}",
            )
    for rank, result in enumerate(results):
        if result.tobytes() != results[0].tobytes():
            at = int(np.argmax(result != results[0]))
            return (
                f"ranks 0 and {rank} disagree in the last bits: {results[0][at].item()!r} and {result[at].item()!r} at index {at}."
                " Floating-point addition depends on the order, so replicas drift apart: let one rank finish each chunk's sum and"
                " pass the result on.",
                f"第 0 号和第 {rank} 号进程在最后几位上不一致：下标 {at} 处分别是 {results[0][at].item()!r} 和"
                f" {result[at].item()!r}。浮点加法与顺序有关，各副本会因此逐渐偏离：每一块应由一个进程算出总和，再把结果传下去。",
            )
    return None


def _sum_hint(inputs, result, total, rank) -> tuple[str, str]:
    world = len(inputs)
    ragged_en = ragged_zh = ""
    half = len(total) // 2
    if len(total) % world:
        ragged_en = "The length does not divide by the number of ranks: do all ranks cut the same chunks?"
        ragged_zh = "长度不能被进程数整除：各进程切出的块是否一致？"
    elif half % world or (len(total) - half) % world:
        ragged_en = "Half of the length does not divide by the number of ranks: do all ranks cut the same chunks?"
        ragged_zh = "长度的一半不能被进程数整除：各进程切出的块是否一致？"
    if world > 1 and result.tobytes() == inputs[rank].tobytes():
        return f"The tensor was left as it was. {ragged_en}", f"张量没有被改动。{ragged_zh}"
    if world > 1 and np.allclose(result.astype(np.float64) * world, total, rtol=1e-4):
        return "That is the mean; the sum is asked for.", "这是平均值，题目要的是总和。"
    magnitude = np.sum(np.abs(inputs), axis=0, dtype=np.float64)
    if inputs[0].dtype == np.int64 and (np.abs((result - total).astype(np.float64)) <= 1e-6 * magnitude).all():
        return "Numbers of 2⁴⁰ don't survive a float32: keep the tensor's dtype.", "2⁴⁰ 大小的整数放不进 float32：请保持张量原来的 dtype。"
    if ragged_en:
        return ragged_en, ragged_zh
    return (
        "Follow one chunk round the ring on paper: who adds it, and when does it come back complete?",
        "请在纸上跟踪一个块绕环一圈：谁把它加进去，它何时完整地传回来？",
    )


# ---------------------------------------------------------------- the links


def _fair(world: int) -> float:
    """What a directed link carries where both directions share the work, in tensors."""
    return (world - 1) / world * (2 if world == 2 else 1)


def _judge_loads(parts, loads) -> int:
    """Returns the world to show: the one that is blamed, else the one that is timed."""
    for world in sorted(loads, reverse=True):
        load, fair = loads[world], _fair(world)
        if not load or max(load.values()) <= LOAD_SLACK * fair:
            continue
        (a, b), most = max(load.items(), key=lambda item: item[1])
        hint_en, hint_zh = _load_hint(world, load)
        parts.add(
            "links", 2, False,
            f"World {world}: the link {a} → {b} carried {most:.2f} times the tensor; at most {LOAD_SLACK * fair:.2f}"
            f" ({LOAD_SLACK} × {fair:.2f}) is needed when both directions share the work. {hint_en}",
            f"world = {world}：链路 {a} → {b} 传了张量大小的 {most:.2f} 倍；两个方向分担时最多只需 {LOAD_SLACK * fair:.2f} 倍"
            f"（{LOAD_SLACK} × {fair:.2f}）。{hint_zh}",
        )  # fmt: skip
        return world
    parts.add("links", 2, True, "No directed link carried more than 1.1·(n−1)/n of the tensor.",
              "没有一条单向链路传输超过张量大小的 1.1·(n−1)/n 倍。")  # fmt: skip
    return TIMED_WORLD


def _load_hint(world: int, load: dict) -> tuple[str, str]:
    if world > 2:
        right = [size for (a, b), size in load.items() if b == (a + 1) % world]
        left = [size for (a, b), size in load.items() if b == (a - 1) % world]
        if min(sum(right), sum(left)) < 0.1 * max(sum(right), sum(left)):
            return (
                "Nearly all went one way round: give half of the tensor to the other direction.",
                "几乎所有数据都朝一个方向走：请把张量的一半交给另一个方向。",
            )
        if min(min(right), min(left)) > 0.9 * max(max(right), max(left)):
            return (
                "Every link carries the same, and too much: each half has to go one way only, and by chunks"
                " (reduce-scatter, then all-gather), not as a whole.",
                "每条链路负载相同，但都太多：每一半只应走一个方向，并且按块传输（先规约散播，再全收集），而不是整体传输。",
            )
    return (
        "Some links carry more than others: split the work evenly, each rank finishing one chunk (reduce-scatter, then all-gather).",
        "有的链路比别的忙：请均匀分工，每个进程负责完成一块（先规约散播，再全收集）。",
    )


# ---------------------------------------------------------------- the time


def _judge_speed(session, parts, evidence):
    world, nbytes = TIMED_WORLD, TIMED_ELEMENTS * 4
    theory_s = 2 * (world - 1) / world * nbytes / BANDWIDTH
    with (
        Ring(session, world, bandwidth_bytes_per_s=BANDWIDTH) as ring,
        Ring(session, world, bandwidth_bytes_per_s=BANDWIDTH, source=ONE_WAY) as one_way,
    ):

        def timed(which: Ring) -> float:
            inputs = [_numbers(session.rng, TIMED_ELEMENTS, "float32") for _ in range(world)]
            results, seconds = which.reduce(inputs)
            mistake = _mistake(inputs, results)
            if mistake:
                raise AnswerFailed("value", f"In a timed run {mistake[0]}", f"计时运行中，{mistake[1]}")
            return seconds

        found = session.paired_ratio(lambda: timed(one_way), lambda: timed(ring), SPEEDUP)
    one_way_s, answer_s = median(found.reference_s), median(found.answer_s)
    evidence |= {"one_way_s": one_way_s, "answer_s": answer_s, "theory_one_way_s": theory_s, "comparison": found.as_dict()}
    told = (
        f"{nbytes >> 20} MiB, {world} ranks, {BANDWIDTH / 1e6:.0f} MB/s each way: {answer_s * 1e3:.0f} ms against the one-way ring's"
        f" {one_way_s * 1e3:.0f} ms, {found.ratio:.2f}× ({found.low:.2f}–{found.high:.2f}, n = {found.pairs})"
    )
    told_zh = (
        f"{nbytes >> 20} MiB、{world} 个进程、每个方向 {BANDWIDTH / 1e6:.0f} MB/s：你的 {answer_s * 1e3:.0f} ms，单向环"
        f" {one_way_s * 1e3:.0f} ms，{found.ratio:.2f} 倍（{found.low:.2f}–{found.high:.2f}，n = {found.pairs}）"
    )
    if one_way_s > ONE_WAY_WITHIN * theory_s or one_way_s < theory_s / ONE_WAY_WITHIN:
        parts.add(
            "faster", 4, None,
            f"{told}. The judge's own ring was off too ({theory_s * 1e3:.0f} ms is its theory): the machine was too busy to tell.",
            f"{told_zh}。评测程序自己的环也不准（理论值 {theory_s * 1e3:.0f} ms）：机器太忙，无法判断。",
        )  # fmt: skip
    elif found.faster is None:
        parts.add("faster", 4, None, f"{told}: {found.reason}.", f"{told_zh}：噪声太大，无法判断是否达到 {SPEEDUP} 倍。")
    elif found.faster:
        parts.add("faster", 4, True, f"{told}.", f"{told_zh}。")
    else:
        hint_en = (
            "It must be at least 1.5×. Both directions carry their share, so do they carry it at the same time? Start both"
            " sends and both receives before you wait for any."
        )
        hint_zh = "至少要达到 1.5 倍。两个方向都承担了各自的数据量，但它们是同时传输的吗？请先启动两个发送和两个接收，再等待。"
        parts.add("faster", 4, False, f"{told}. {hint_en}", f"{told_zh}。{hint_zh}")
    return found


def _figure(loads, world: int, found=None) -> bytes | None:
    """The load of each directed link of a world over what is allowed and, where they were timed, the times over the one-way ring's."""
    from perflab import plot

    if not loads.get(world):
        return None
    fig, axes = plot.subplots(1, 2 if found else 1, height_in=0.9 + 0.22 * max(len(loads[world]), 8), squeeze=False)
    left, right = axes[0, 0], axes[0, -1]
    links = sorted(loads[world])
    left.barh([f"{a} → {b}" for a, b in links], [loads[world][link] for link in links], color=plot.PALETTE[0])
    left.axvline(LOAD_SLACK * _fair(world), color=plot.PALETTE[1])
    left.invert_yaxis()
    left.set(xlabel="carried ÷ tensor (line: allowed)", ylabel=f"link, world {world}")
    if found:
        right.plot([1e3 * s for s in found.reference_s], ".", color=plot.PALETTE[1], label="one-way ring")
        right.plot([1e3 * s for s in found.answer_s], ".", color=plot.PALETTE[0], label="your ring")
        right.set(xlabel="round", ylabel="time (ms)", ylim=(0, 1.1 * right.dataLim.y1))
        plot.legend(fig, handles=right.get_legend_handles_labels()[0])
    return plot.png(fig)
