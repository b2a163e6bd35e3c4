"""`python -m sidecar`: the same command line as `spikewatch`."""

from sidecar.cli import main

if __name__ == "__main__":
    main()
