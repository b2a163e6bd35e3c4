"""Active probes of the GPU: a child process measures once a period, within a budget, when it is allowed to."""
