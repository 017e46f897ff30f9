"""The shortest schedule by trying every order and every mode."""

from dataclasses import dataclass

from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem

_SLACK = 1e-9


@dataclass(frozen=True)
class Block:
    """One operator placed in time."""

    start_s: float
    end_s: float
    shares: tuple[float, ...]
    alone: bool


def mode_block(
    problem: ScheduleProblem, operator: ScheduleOperator, intra: bool, bandwidth: bool
) -> Block:
    """Place an operator in a mode at time 0."""
    shares = []
    for core, count in (("TC", problem.num_tc), ("VC", problem.num_vc)):
        share = 1.0 if intra else 1.0 / max(count, 1)
        shares.append(share if core in operator.core else 0.0)
    if bandwidth and intra:
        shares += [operator.intra_op_hbm_fraction, operator.intra_op_glb_fraction]
    elif bandwidth:
        shares += [operator.hbm_fraction, operator.glb_fraction]
    if bandwidth:
        shares.append(operator.link_fraction)
    latency_s = operator.intra_op_latency_s if intra else operator.latency_s
    alone = intra and problem.intra_operator == "exclusive"
    return Block(0.0, latency_s, tuple(shares), alone)


def fits(block: Block, start_s: float, placed: list[Block]) -> bool:
    """Whether a block may start at a time beside those placed."""
    end_s = start_s + block.end_s
    beside = [x for x in placed if x.start_s < end_s - _SLACK and x.end_s > start_s + _SLACK]
    if not beside or block.end_s == 0.0:
        return True
    if block.alone or any(x.alone for x in beside):
        return False
    for instant_s in [start_s, *[x.start_s for x in beside if x.start_s > start_s]]:
        now = [x for x in beside if x.start_s <= instant_s + _SLACK < x.end_s]
        for column, share in enumerate(block.shares):
            if share + sum(x.shares[column] for x in now) > 1.0 + _SLACK:
                return False
    return True


def shortest_makespan_s(problem: ScheduleProblem, bandwidth: bool = True) -> float:
    """Find the least makespan over all orders and modes, each operator as early as it fits.

    An order is given up where the operators placed, or a path that is left, already take as long
    as the best one. Latencies must be much larger than 1e-9.
    """
    count = len(problem.operators)
    before: list[list[int]] = [[] for _ in range(count)]
    for source, target in problem.edges:
        before[target].append(source)
    fastest_s = [
        operator.latency_s
        if operator.core == "none"
        else min(operator.latency_s, operator.intra_op_latency_s)
        for operator in problem.operators
    ]
    below_s = [0.0] * count
    for _ in range(count):
        for source, target in problem.edges:
            below_s[source] = max(below_s[source], fastest_s[target] + below_s[target])
    placed: dict[int, Block] = {}
    best_s = float("inf")

    def extend(makespan_s: float) -> None:
        nonlocal best_s
        if len(placed) == count:
            best_s = min(best_s, makespan_s)
            return
        for i in range(count):
            if i in placed or any(j not in placed for j in before[i]):
                continue
            ready_s = max((placed[j].end_s for j in before[i]), default=0.0)
            modes = (False,) if problem.operators[i].core == "none" else (False, True)
            for intra in modes:
                block = mode_block(problem, problem.operators[i], intra, bandwidth)
                others = list(placed.values())
                times_s = sorted({ready_s, *[x.end_s for x in others if x.end_s > ready_s]})
                start_s = next(t for t in times_s if fits(block, t, others))
                end_s = start_s + block.end_s
                if max(makespan_s, end_s + below_s[i]) < best_s:
                    placed[i] = Block(start_s, end_s, block.shares, block.alone)
                    extend(max(makespan_s, end_s))
                    del placed[i]

    extend(0.0)
    return best_s
