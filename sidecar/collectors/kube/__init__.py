"""What runs in a Kubernetes cluster, on what, and what each pod of it costs per hour."""
