"""NVIDIA GPUs, read by NVML in a process of its own: a driver call can hang, and nothing may wait for it."""
