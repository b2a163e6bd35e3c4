"""A declared serving worker: starts as slowly as it is told, serves a request whenever the lever is pulled.

python signals_worker.py SOCKET STARTUP_SECONDS LEVER
"""

import sys
import time
from pathlib import Path

from signals_lever import Lever, end_with_parent

import spikewatch

end_with_parent()
socket, startup, file = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
lever = Lever(file)
worker = spikewatch.worker("tokenizer", socket=socket)
time.sleep(startup)
served = 0.0
while True:
    wanted = lever.at()
    if wanted > served:
        with worker.request():
            served = wanted
    time.sleep(0.005)
