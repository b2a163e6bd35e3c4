"""How a run's model is laid out, told from its objects: parallelism, precision, offload, also of sharded models.

Torch is looked at, never imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

UNKNOWN = "unknown"
_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_OF_DATA = ("dp", "data", "fsdp", "shard", "replicate", "ddp", "hsdp")  # how mesh dimensions of data parallelism begin


def describe(model: Any = None, optimizer: Any = None, scaler: Any = None) -> dict[str, str]:
    """`parallelism` (`none`, `dp`, `ddp`, `fsdp`, `fsdp2`, `zero1` to `zero3`, with `+tp` and the like after it),
    `precision` (`bf16`, `fp16-mixed`, …) and `offload` (`none`, `cpu`, `nvme`); `unknown` where the objects do not
    tell. An autocast region of the loop's own shows in none of them, so float32 parameters alone say nothing.

    `optimizer` is looked at where there is no model. Raises nothing but what the model's own attributes raise.
    """
    modules = list(model.modules()) if hasattr(model, "modules") else []
    engine = next((m for m in modules if _is(m, "DeepSpeedEngine")), None)
    sharded = [m for m in modules if _is(m, "FSDPModule")]
    parameters = _parameters(model, optimizer)
    return {
        "parallelism": _parallelism(modules, engine, bool(sharded), parameters),
        "precision": _precision(engine, sharded, scaler, parameters),
        "offload": _offload(modules, engine, sharded),
    }


def _parameters(model: Any, optimizer: Any) -> list[Any]:
    if hasattr(model, "parameters"):
        return list(model.parameters())
    return [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]


def _is(thing: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(thing).__mro__)


def _parallelism(modules: list[Any], engine: Any, sharded: bool, parameters: list[Any]) -> str:
    if engine is not None:
        stage = int(engine.zero_optimization_stage())
        kind = f"zero{stage}" if stage else "ddp"
    elif sharded:
        kind = "fsdp2"
    elif any(_is(m, "FullyShardedDataParallel") for m in modules):
        kind = "fsdp"
    elif any(_is(m, "DistributedDataParallel") for m in modules):
        kind = "ddp"
    elif any(_is(m, "DataParallel") for m in modules):
        kind = "dp"
    else:
        kind = "" if modules else UNKNOWN
    names = {name for p in parameters for name in getattr(getattr(p, "device_mesh", None), "mesh_dim_names", ()) or ()}
    others = sorted(name for name in names if not name.startswith(_OF_DATA))  # tensor, pipeline, expert …
    return "+".join([kind, *others] if kind else others) or "none"


def _precision(engine: Any, sharded: list[Any], scaler: Any, parameters: list[Any]) -> str:
    if engine is not None:
        return "fp16" if engine.fp16_enabled() else "bf16" if engine.bfloat16_enabled() else "fp32"
    if scaler is not None and scaler.is_enabled():
        return "fp16-mixed"
    kinds = {_name(p.dtype) for p in parameters if p.dtype.is_floating_point}
    computed = {_name(dtype) for group in _groups(sharded) if (dtype := group.mp_policy.param_dtype) is not None}
    if len(computed) == 1:
        (kind,) = computed
        return kind if kinds == computed else f"{kind}-mixed"
    if len(kinds) != 1:
        return UNKNOWN
    (kind,) = kinds
    return UNKNOWN if kind == "fp32" else kind


def _name(dtype: Any) -> str:
    text = str(dtype).removeprefix("torch.")
    return _SHORT.get(text, text)


def _offload(modules: list[Any], engine: Any, sharded: list[Any]) -> str:
    if engine is not None:
        configs = (engine.zero_offload_param(), engine.zero_offload_optimizer())
        devices = {str(getattr(c.device, "value", c.device)) for c in configs if c is not None} - {"none"}
        return "+".join(sorted(devices)) or "none"
    if any("CPUOffload" in type(group.offload_policy).__name__ for group in _groups(sharded)):
        return "cpu"
    wrapped = [m for m in modules if _is(m, "FullyShardedDataParallel")]
    if any(getattr(getattr(m, "cpu_offload", None), "offload_params", False) for m in wrapped):
        return "cpu"
    return "none" if modules else UNKNOWN


def _groups(sharded: list[Any]) -> Iterator[Any]:
    """The parameter groups of `fully_shard`, whose policies are kept nowhere public; none where they are unknown."""
    for module in sharded:
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [g for g in [getattr(state, "_fsdp_param_group", None)] if g is not None]
        yield from (g for g in groups if hasattr(g, "mp_policy") and hasattr(g, "offload_policy"))
