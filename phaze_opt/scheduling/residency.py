"""What stays on the chip: operators and tensors as data, and the evaluation of one plan.

Operators run one at a time, each on all cores of its type, in an order that the precedences allow.
A tensor may be *resident*: it then occupies the global buffer from the start of its producer (an
input of the pass: of its first reader) to the end of its last reader. Its readers do not read it
from HBM, not even again and again as their blocking would, and its producer does not write it
unless it outlives the pass. Somebody must bring an input: its first reader reads it once.

Every operator runs at one of a few *levels*, which are ways of blocking it: a level has working
bytes in the global buffer, HBM bytes with nothing resident, and for each tensor that the operator
makes or reads the HBM bytes that residency saves. With these the operator takes

    max(other_s, HBM bytes that remain / hbm_bytes_per_s) + overhead_s.

At every operator, the bytes of the resident tensors and the working bytes of its level must fit the
global buffer.

The numbers are arrays, so that the estimator can fill them for many chips at once; what does not
depend on the chip stands in `TensorGraph`, which is built once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.errors import InputError
from phaze_opt.on_demand import cached_property
from phaze_opt.scheduling.schedule_problem import TiledGroup

if TYPE_CHECKING:
    from phaze_opt.scheduling.residency_frames import Frame
    from phaze_opt.scheduling.residency_kernel import Chip, Onces
    from phaze_opt.scheduling.tiles import Tiling

LARGEST_BYTES = 2**50
"""Bytes above this are refused: sums must stay exact."""


@dataclass(frozen=True)
class PassTensor:
    """A tensor that operators of the pass make or read.

    Attributes
    ----------
    bytes
        What it occupies while it is resident.
    producer
        Operator that makes it, or None for an input of the pass.
    readers
        Operators that read it, each once.
    outlives
        Whether it is needed after the pass (a stash, a gradient, an output), so that its producer
        writes it even where it is resident.
    """

    bytes: int
    producer: int | None
    readers: tuple[int, ...]
    outlives: bool = False

    @property
    def accesses(self) -> tuple[int, ...]:
        """The operators that make or read it, the producer first."""
        return self.readers if self.producer is None else (self.producer, *self.readers)


@dataclass(frozen=True, eq=False)
class TensorGraph:
    """Precedences and tensors of a pass: all that does not depend on the chip.

    Attributes
    ----------
    operators
        Number of operators.
    edges
        Precedences ``(before, after)``; each tensor's producer precedes its readers.
    tensors
        Tensors that may be resident; others are left out.
    """

    operators: int
    edges: tuple[tuple[int, int], ...]
    tensors: tuple[PassTensor, ...]

    @cached_property
    def accesses(self) -> tuple[tuple[int, int], ...]:
        """Pairs (tensor, operator): tensor by tensor, first its producer, then its readers."""
        return tuple((i, user) for i, tensor in enumerate(self.tensors) for user in tensor.accesses)

    @cached_property
    def access_tensor(self) -> IntArray:
        """Tensor of every access: (accesses,)."""
        return np.array([tensor for tensor, _ in self.accesses], dtype=np.int64)

    @cached_property
    def access_operator(self) -> IntArray:
        """Operator of every access: (accesses,)."""
        return np.array([operator for _, operator in self.accesses], dtype=np.int64)

    @cached_property
    def first_access(self) -> IntArray:
        """Number of the first access of every tensor, and the number of all: (tensors + 1,)."""
        counts = [len(tensor.accesses) for tensor in self.tensors]
        return np.cumsum([0, *counts]).astype(np.int64)

    @cached_property
    def tensor_bytes(self) -> IntArray:
        """Bytes of every tensor: (tensors,)."""
        return np.array([tensor.bytes for tensor in self.tensors], dtype=np.int64)

    @cached_property
    def is_input(self) -> IntArray:
        """1 for every tensor that is an input of the pass, else 0: (tensors,)."""
        return np.array([tensor.producer is None for tensor in self.tensors], dtype=np.int64)

    @cached_property
    def accesses_by_operator(self) -> tuple[IntArray, IntArray]:
        """Where the accesses of every operator begin, and their numbers, operator by operator."""
        counts = np.bincount(self.access_operator, minlength=self.operators)
        numbers = np.argsort(self.access_operator, kind="stable")
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), numbers.astype(np.int64)

    @cached_property
    def sole_load(self) -> IntArray:
        """Bytes that an access reads of a resident tensor in every order: (accesses,).

        Not 0 for the only reader of an input; of several readers the order decides which pays.
        """
        loads = [
            tensor.bytes if tensor.producer is None and len(tensor.readers) == 1 else 0
            for tensor in self.tensors
            for _ in tensor.accesses
        ]
        return np.array(loads, dtype=np.int64)

    @cached_property
    def must_write(self) -> FloatArray:
        """0 for every access that is a write of a tensor that outlives the pass, else 1."""
        writes = [
            tensor.outlives and access == tensor.producer
            for tensor in self.tensors
            for access in tensor.accesses
        ]
        return 1.0 - np.array(writes, dtype=np.float64)

    @cached_property
    def nothing_once(self) -> Onces:
        """That no operator has a level in which it reads nothing twice and works in no room."""
        none = np.zeros(self.operators)
        return none.astype(np.bool_), none, np.zeros(len(self.accesses))

    @cached_property
    def orders(self) -> tuple[IntArray, ...]:
        """Orders that the fast method tries; see `residency_orders`."""
        from phaze_opt.scheduling.residency_orders import candidate_orders

        return candidate_orders(self)

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """Frames that the fast method searches; see `residency_frames`."""
        from phaze_opt.scheduling.residency_frames import build_frames

        return build_frames(self)


@dataclass(frozen=True, eq=False)
class Residency:
    """The joint problem of order, levels and residency on one chip.

    An operator with fewer levels than another repeats one of its own. Level 0 is the one that the
    operator has without residency.

    Attributes
    ----------
    graph
        Precedences and tensors.
    glb_bytes
        Size of the global buffer.
    hbm_bytes_per_s
        Bandwidth of HBM.
    working_bytes
        Bytes in the global buffer while the operator runs: (operators, levels).
    hbm_bytes
        Bytes from and to HBM with nothing resident: (operators, levels).
    other_s
        Time of the operator for everything but HBM (cores, lanes, global buffer, link):
        (operators, levels).
    overhead_s
        What the operator takes besides, overlapped with nothing: (operators,).
    saved_bytes
        HBM bytes that the operator of an access saves if the tensor is resident, with its repeated
        reads: (accesses, levels), in the order of `TensorGraph.accesses`. A producer's entry is
        what it writes, whether or not the tensor outlives the pass.
    tiling
        What operators take that run tile by tile; ``None`` if none may.
    """

    graph: TensorGraph
    glb_bytes: int
    hbm_bytes_per_s: float
    working_bytes: IntArray
    hbm_bytes: FloatArray
    other_s: FloatArray
    overhead_s: FloatArray
    saved_bytes: FloatArray
    tiling: Tiling | None = None

    @cached_property
    def effective_saved_bytes(self) -> FloatArray:
        """``saved_bytes`` without the writes of tensors that outlive the pass."""
        return self.saved_bytes * self.graph.must_write[:, np.newaxis]

    @property
    def numbers(self) -> Chip:
        """The numbers of the problem for compiled loops."""
        return (
            self.working_bytes,
            self.hbm_bytes,
            self.other_s,
            self.overhead_s,
            self.effective_saved_bytes,
            self.graph.tensor_bytes,
        )

    @property
    def levels(self) -> int:
        """Largest number of levels of an operator."""
        return int(self.working_bytes.shape[1])


@dataclass(frozen=True)
class ResidencyPlan:
    """A choice: order of the operators, level of each, and which tensors are resident."""

    order: tuple[int, ...]
    levels: tuple[int, ...]
    resident: tuple[bool, ...]


@dataclass(frozen=True)
class EvaluatedPlan:
    """What a plan takes: seconds and HBM bytes of every operator, and the sums.

    Attributes
    ----------
    plan
        The choice.
    start_s, end_s
        Of every operator.
    hbm_bytes
        Of every operator.
    makespan_s
        End of the last operator.
    """

    plan: ResidencyPlan
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    hbm_bytes: tuple[float, ...]
    makespan_s: float

    @property
    def rank(self) -> tuple[float, float]:
        """What is minimised: first seconds, then HBM bytes."""
        return self.makespan_s, sum(self.hbm_bytes)


@dataclass(frozen=True)
class EvaluatedSteps(EvaluatedPlan):
    """A plan with groups that run tile by tile.

    The operators of a group stand one behind another, as if they took no turns.
    """

    groups: tuple[TiledGroup, ...]


def evaluate_plan(residency: Residency, plan: ResidencyPlan) -> EvaluatedPlan:
    """Run the operators one after another, and count what flows from and to HBM.

    The plan must keep the precedences and the size of the global buffer, which nothing checks here.
    """
    graph = residency.graph
    flow = residency.hbm_bytes[np.arange(graph.operators), list(plan.levels)].tolist()
    place = {operator: position for position, operator in enumerate(plan.order)}
    saved = residency.effective_saved_bytes
    access = 0
    for i, tensor in enumerate(graph.tensors):
        accesses = tensor.accesses
        if plan.resident[i]:
            for number, operator in enumerate(accesses, start=access):
                flow[operator] -= float(saved[number, plan.levels[operator]])
            if tensor.producer is None and accesses:
                flow[min(accesses, key=place.__getitem__)] += float(tensor.bytes)
        access += len(accesses)
    # Residency that saves all that an operator moves may leave a rounding error.
    flow = [max(0.0, size_bytes) for size_bytes in flow]
    start_s, end_s, now_s = [0.0] * len(flow), [0.0] * len(flow), 0.0
    for operator in plan.order:
        start_s[operator] = now_s
        other_s = float(residency.other_s[operator, plan.levels[operator]])
        busy_s = max(other_s, flow[operator] / residency.hbm_bytes_per_s)
        now_s += busy_s + float(residency.overhead_s[operator])
        end_s[operator] = now_s
    return EvaluatedPlan(plan, tuple(start_s), tuple(end_s), tuple(flow), now_s)


def spans_s(graph: TensorGraph, evaluated: EvaluatedPlan) -> list[tuple[int, float, float]]:
    """List every resident tensor with the start and the end of its stay."""
    start_s, end_s = list(evaluated.start_s), list(evaluated.end_s)
    for group in evaluated.groups if isinstance(evaluated, EvaluatedSteps) else ():
        # Its operators take turns, so that what one of them needs stays for all of them.
        for operator in group.operators:
            start_s[operator], end_s[operator] = group.start_s, group.end_s
    return [
        (
            i,
            min(start_s[access] for access in tensor.accesses),
            max(end_s[access] for access in tensor.accesses),
        )
        for i, tensor in enumerate(graph.tensors)
        if evaluated.plan.resident[i]
    ]


def spread_savings(
    saved_bytes: FloatArray, stated: BoolArray, operator: IntArray, hbm_bytes: FloatArray
) -> None:
    """Lower what accesses save for which nothing is stated to what their operators move.

    Parameters
    ----------
    saved_bytes : (accesses, levels)
        Lowered in place.
    stated, operator : (accesses,)
        Whether what an access saves is stated, and its operator.
    hbm_bytes : (operators, levels)
        What the operators move.
    """
    taken, wanted = np.zeros_like(hbm_bytes), np.zeros_like(hbm_bytes)
    np.add.at(taken, operator[stated], saved_bytes[stated])
    np.add.at(wanted, operator[~stated], saved_bytes[~stated])
    share = np.clip((hbm_bytes - taken) / np.where(wanted > 0.0, wanted, 1.0), 0.0, 1.0)
    saved_bytes[~stated] *= share[operator[~stated]]


def check_residency(residency: Residency, ids: Sequence[str]) -> None:
    """Refuse data that are no joint problem, in one sentence that names the operator or tensor.

    Parameters
    ----------
    residency
        The data; its edges must form no cycle, which `schedule_problem.check_problem` checks.
    ids
        Names of the operators.

    Raises
    ------
    InputError
        For arrays of other shapes, a number outside its range, a tensor of an unknown operator or
        with an operator twice, or a producer that does not precede its reader.
    """
    graph = residency.graph
    if graph.operators != len(ids):
        raise InputError(
            f"The tensors belong to {graph.operators} operators, but the problem has {len(ids)}."
        )
    if not 0 <= residency.glb_bytes <= LARGEST_BYTES:
        raise InputError(
            f"glb_bytes is {residency.glb_bytes}, but it must be from 0 to {LARGEST_BYTES}."
        )
    rate = residency.hbm_bytes_per_s
    if not (np.isfinite(rate) and rate > 0.0):
        raise InputError(f"hbm_bytes_per_s is {rate}, but it must be finite and above 0.")
    edges = set(graph.edges)
    for i, tensor in enumerate(graph.tensors):
        _check_tensor(i, tensor, ids, edges)
    _check_numbers(residency, ids)


def _check_tensor(
    number: int, tensor: PassTensor, ids: Sequence[str], edges: set[tuple[int, int]]
) -> None:
    """Check the size and the operators of one tensor."""
    if not 0 <= tensor.bytes <= LARGEST_BYTES:
        raise InputError(
            f"Tensor number {number} has {tensor.bytes} bytes, "
            f"but the size must be from 0 to {LARGEST_BYTES}."
        )
    accesses = tensor.accesses
    for access in accesses:
        if not 0 <= access < len(ids):
            raise InputError(
                f"Tensor number {number} names operator number {access}, "
                f"but there are {len(ids)} operators, counted from 0."
            )
    if not accesses or len(set(accesses)) < len(accesses):
        named = ", ".join(repr(ids[access]) for access in accesses) or "no operator"
        raise InputError(
            f"Tensor number {number} is made and read by {named}; "
            "it must have an operator, and each once."
        )
    if tensor.producer is not None:
        for reader in tensor.readers:
            if (tensor.producer, reader) not in edges:
                raise InputError(
                    f"Operator {ids[reader]!r} reads a tensor of {ids[tensor.producer]!r}, "
                    "but there is no edge between them."
                )


def _check_numbers(residency: Residency, ids: Sequence[str]) -> None:
    """Check shapes and ranges of the arrays."""
    graph = residency.graph
    rows = {
        "working_bytes": graph.operators,
        "hbm_bytes": graph.operators,
        "other_s": graph.operators,
        "saved_bytes": len(graph.accesses),
    }
    shapes = {name: (count, residency.levels) for name, count in rows.items()}
    for name, shape in {**shapes, "overhead_s": (graph.operators,)}.items():
        values = getattr(residency, name)
        if values.shape != shape or (residency.levels == 0 and graph.operators):
            raise InputError(f"{name} has the shape {values.shape}, but it must be {shape}.")
        wrong = ~(np.isfinite(values) & (values >= 0) & (values <= LARGEST_BYTES))
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            operator = graph.accesses[row][1] if name == "saved_bytes" else row
            raise InputError(
                f"{name} of operator {ids[operator]!r} is {values[wrong][0]}, "
                "but it must be finite and not negative."
            )
    total = np.zeros_like(residency.hbm_bytes)
    np.add.at(total, graph.access_operator, residency.saved_bytes)
    wrong = total > residency.hbm_bytes * (1.0 + 1e-9)
    if wrong.any():
        row, level = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"Residency saves operator {ids[row]!r} {total[row, level]} bytes at level {level}, "
            f"but it moves only {residency.hbm_bytes[row, level]}."
        )
