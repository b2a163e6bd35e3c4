"""What could this GPU deliver right now: small CUDA kernels, their PTX, and the runner. Standard library only."""
