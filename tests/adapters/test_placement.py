"""How a run trains is told from the objects it trains with."""

from types import SimpleNamespace

import pytest

from spikewatch.placement import describe

pytestmark = pytest.mark.torch


@pytest.fixture
def model():
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


@pytest.fixture
def group():
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


def test_a_plain_model_is_in_one_piece_and_float32_parameters_alone_do_not_tell_the_precision(model):
    assert describe(model) == {"parallelism": "none", "precision": "unknown", "offload": "none"}
    assert describe(model.bfloat16())["precision"] == "bf16"


def test_a_scaler_tells_fp16(model):
    import torch

    assert describe(model, None, torch.amp.GradScaler("cpu"))["precision"] == "fp16-mixed"
    assert describe(model, None, torch.amp.GradScaler("cpu", enabled=False))["precision"] == "unknown"


def test_of_an_optimizer_alone_only_its_parameters_are_known(model):
    import torch

    optimizer = torch.optim.SGD(model.half().parameters(), 0.1)
    assert describe(None, optimizer) == {"parallelism": "unknown", "precision": "fp16", "offload": "unknown"}
    assert describe() == {"parallelism": "unknown", "precision": "unknown", "offload": "unknown"}


def test_ddp_is_seen_through_a_compiled_model(model, group):
    import torch

    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    assert describe(wrapped)["parallelism"] == "ddp"
    assert describe(torch.compile(wrapped, backend="eager"))["parallelism"] == "ddp"


def test_a_sharded_model_tells_its_precision_and_offload_policies(model, group):
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    mesh = group.init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    offload = CPUOffloadPolicy(pin_memory=False)
    sharded = fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)
    assert describe(sharded) == {"parallelism": "fsdp2", "precision": "bf16-mixed", "offload": "cpu"}


def test_a_model_whose_parts_are_sharded_is_sharded(model, group):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0], mesh=group.init_device_mesh("cpu", (1,)))
    assert describe(model) == {"parallelism": "fsdp2", "precision": "unknown", "offload": "none"}


def test_other_dimensions_of_a_mesh_are_named(model, group):
    from torch.distributed.tensor import Replicate, distribute_module

    mesh = group.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    placed = distribute_module(model, mesh["tp"])
    assert next(placed.parameters()).placements == (Replicate(),)
    assert describe(placed)["parallelism"] == "tp"


def test_a_deepspeed_engine_tells_its_stage_and_where_it_offloads():
    class DeepSpeedEngine:
        def __init__(self, stage, **devices):
            self.zero_optimization_stage = lambda: stage
            self.fp16_enabled, self.bfloat16_enabled = (lambda: False), (lambda: True)
            kinds = {name: SimpleNamespace(device=SimpleNamespace(value=text)) for name, text in devices.items()}
            self.zero_offload_param = lambda: kinds.get("param")
            self.zero_offload_optimizer = lambda: kinds.get("optimizer")

        def modules(self):
            return [self]

        def parameters(self):
            return []

    told = describe(DeepSpeedEngine(3, param="nvme", optimizer="cpu"))
    assert told == {"parallelism": "zero3", "precision": "bf16", "offload": "cpu+nvme"}
    assert describe(DeepSpeedEngine(0))["parallelism"] == "ddp"
    assert describe(DeepSpeedEngine(1, optimizer="none"))["offload"] == "none"
