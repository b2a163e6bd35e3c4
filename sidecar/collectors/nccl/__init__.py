"""NCCL as seen from outside: log lines, PyTorch's watchdog, Inspector, flight recorder and RAS."""
