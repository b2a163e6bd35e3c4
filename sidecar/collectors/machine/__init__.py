"""What the machine gives the pod: CPU, memory, shared memory and network, and where it holds back."""
