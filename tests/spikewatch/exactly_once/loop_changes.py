"""What is changed on the way, and the kinds of loader it is changed on."""

CHANGES = (
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 2},
    {"prefetch_factor": 1},
    {"prefetch_factor": 5},
    {"micro_batch_size": 4},
    {"micro_batch_size": 16},
    {"accumulation_steps": 8},
    {"micro_batch_size": 8},
    {"micro_batch_size": 2, "num_workers": 1},
)

KINDS = ("plain", "drop_last", "shuffled", "generator", "distributed", "own batch sampler")
