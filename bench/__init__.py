"""Paired benchmarks: ours and a peer in one run, as ratios."""
