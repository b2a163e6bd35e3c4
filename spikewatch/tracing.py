"""Records one training step operation by operation, without keeping or changing a tensor.

Of every result only the smallest and largest value are taken, on its device; they are read once, at the end. A
dispatch mode sees forward and backward alike. Which module a backward operation belongs to is told by autograd's
sequence numbers: those handed out while a module's forward ran are that module's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from spikewatch.culprit import Operation

MAX_OPERATIONS = 50_000
MAX_WRITERS = 16  # operations remembered of one storage that is written piece by piece
UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"

Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]


class Trace:
    """What has run so far. `note_inputs` before an operation, `note_outputs` after it."""

    def __init__(self, torch: Any, model: Any) -> None:
        self._torch = torch
        self.open = True
        self.failures = 0
        self._named = {id(module): name or type(module).__name__ for name, module in _modules(model)}
        self._parameters = {self._storage(tensor): name for name, tensor in _tensors(model)}
        self._stack: list[tuple[str, int]] = []
        self._spans: list[tuple[int, int, str]] = []  # sequence numbers from, to (not included), module
        self._rows: list[tuple[str, str, str, tuple[int, ...], int | None]] = []
        self._limits: list[tuple[Any, Any] | None] = []
        self._by_view: dict[Key, int] = {}
        self._by_storage: dict[int, list[int]] = {}
        self.arrived: list[int] = []  # positions of what the scaler looked at

    # --- modules, as hooks for all of them --------------------------------------------------------------------------

    def entered(self, module: Any, *_: Any) -> None:
        self._stack.append((self._named.get(id(module), type(module).__name__), self._sequence()))

    def left(self, *_: Any) -> None:
        if self._stack:
            name, began = self._stack.pop()
            self._spans.append((began, self._sequence(), name))

    def _sequence(self) -> int:
        return int(self._torch._C._autograd._get_sequence_nr())

    # --- operations -------------------------------------------------------------------------------------------------

    def note_inputs(self, name: str, arguments: Any) -> tuple[tuple[int, ...], frozenset[int]]:
        """(positions of the operations that made the tensors in `arguments`, their storages)."""
        tensors = [t for t in self._flat(arguments) if self._plain(t)]
        sources: dict[int, None] = {}
        for tensor in tensors:
            sources.update(dict.fromkeys(self._makers(tensor)))
        if name == UNSCALE:
            self.arrived += sources
        return tuple(sources), frozenset(self._storage(t) for t in tensors)

    def note_outputs(
        self, name: str, sources: tuple[int, ...], storages: frozenset[int], out: Any, writes: bool
    ) -> None:
        tensors = [t for t in self._flat(out) if self._plain(t)]
        made = [t for t in tensors if writes or self._storage(t) not in storages]  # the others are views
        if not made or len(self._rows) >= MAX_OPERATIONS:
            return
        node = self._torch._C._current_autograd_node()
        if node is None:
            module, direction, sequence = (self._stack[-1][0] if self._stack else ""), "forward", None
        else:
            module, direction, sequence = "", "backward", node._sequence_nr()
        position = self._add(name, module, direction, sources, sequence, made)
        for tensor in made:
            storage = self._storage(tensor)
            writers = self._by_storage.get(storage, []) if storage in storages else []
            self._by_storage[storage] = [*writers[-MAX_WRITERS:], position]
            self._by_view[self._key(tensor)] = position

    def _makers(self, tensor: Any) -> list[int]:
        known = self._by_view.get(self._key(tensor))
        storage = self._storage(tensor)
        if known is not None and known in self._by_storage.get(storage, ()):
            return [known]
        if storage not in self._by_storage:
            name = self._parameters.get(storage)
            kind, module = ("parameter", name) if name else ("input", "")
            self._by_storage[storage] = [self._add(kind, module, "outside", (), None, [tensor])]
        return self._by_storage[storage]

    def _add(
        self, name: str, module: str, direction: str, sources: tuple[int, ...], sequence: int | None, made: list[Any]
    ) -> int:
        limits = self._extremes(made)  # first: it may fail
        self._rows.append((name, module, direction, sources, sequence))
        self._limits.append(limits)
        return len(self._rows) - 1

    def _extremes(self, tensors: list[Any]) -> tuple[Any, Any] | None:
        found = [self._torch.aminmax(t.detach()) for t in tensors if t.is_floating_point() and t.numel()]
        if not found:
            return None
        if len(found) == 1:
            return found[0].min.double(), found[0].max.double()
        return (
            self._torch.stack([pair.min.double() for pair in found]).amin(),
            self._torch.stack([pair.max.double() for pair in found]).amax(),
        )

    def _plain(self, value: Any) -> bool:
        torch = self._torch
        return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided

    @staticmethod
    def _storage(tensor: Any) -> int:
        return int(tensor.untyped_storage()._cdata)

    def _key(self, tensor: Any) -> Key:
        return self._storage(tensor), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())

    def _flat(self, value: Any) -> list[Any]:
        return list(self._torch.utils._pytree.tree_leaves(value))

    # --- at the end -------------------------------------------------------------------------------------------------

    def operations(self) -> list[Operation]:
        """All of them; here the devices are waited for, once each."""
        limits = self._read()
        return [
            Operation(name, module if sequence is None else self._module_of(sequence), direction, sources, *limits[n])
            for n, (name, module, direction, sources, sequence) in enumerate(self._rows)
        ]

    def _module_of(self, sequence: int) -> str:
        spans = [(end - begin, name) for begin, end, name in self._spans if begin <= sequence < end]
        return min(spans)[1] if spans else ""

    def _read(self) -> list[tuple[float, float]]:
        found = [(0.0, 0.0)] * len(self._limits)
        by_device = defaultdict(list)
        for position, limits in enumerate(self._limits):
            if limits is not None:
                by_device[limits[0].device].append((position, limits))
        for several in by_device.values():
            numbers = self._torch.stack([x for _, limits in several for x in limits]).tolist()
            for (position, _), low, high in zip(several, numbers[::2], numbers[1::2], strict=True):
                found[position] = (low, high)
        return [(low, high) if not math.isnan(low) else (math.nan, math.nan) for low, high in found]


def _modules(model: Any) -> Any:
    return model.named_modules() if hasattr(model, "named_modules") else ()


def _tensors(model: Any) -> Any:
    if hasattr(model, "named_parameters"):
        yield from model.named_parameters()
        yield from model.named_buffers()


class Recording:
    """A trace that is being taken: begins with the constructor, on this thread; `end` stops it."""

    def __init__(self, torch: Any, model: Any) -> None:
        from torch.nn.modules import module as hooks
        from torch.utils._python_dispatch import TorchDispatchMode

        self._torch = torch
        self.trace = trace = Trace(torch, model)

        base: Any = TorchDispatchMode  # torch does not type its modes

        class Recorder(base):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                noted = _try(trace, lambda: trace.note_inputs(_name(func), (args, kwargs)))
                out = func(*args, **(kwargs or {}))
                if noted is not None:
                    writes = func._schema.is_mutable
                    _try(trace, lambda: trace.note_outputs(_name(func), noted[0], noted[1], out, writes))
                return out

        self._hooks = [
            hooks.register_module_forward_pre_hook(trace.entered),
            hooks.register_module_forward_hook(trace.left, always_call=True),
        ]
        self._mode: Any = Recorder()
        self._mode.__enter__()

    def end(self) -> bool:
        """Whether it could be stopped: not while somebody else's mode lies on top of it. Recording has ended anyway."""
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        self.trace.open = False
        for hook in self._hooks:
            hook.remove()
        current: Any = _get_current_dispatch_mode()
        if current is not self._mode:
            return False
        current.__exit__(None, None, None)
        return True


def _name(func: Any) -> str:
    return str(func.overloadpacket.__name__)


def _try(trace: Trace, note: Any) -> Any:
    """What `note` returns; None where recording has ended or goes wrong. The step itself must not notice."""
    if not trace.open:
        return None
    try:
        return note()
    except Exception:  # noqa: BLE001  counted; the step goes on
        trace.failures += 1
        return None
