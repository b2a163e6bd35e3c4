"""Parquet datasets: how large their files and row groups are, at a bounded cost."""
