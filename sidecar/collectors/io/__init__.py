"""Input and output of the trainer: io_uring, pressure, files, devices, network file systems, and a read probe."""
