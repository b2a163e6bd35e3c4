"""After start-up the collector of garbage has nothing to look through but what came since."""

import subprocess
import sys

CODE = """
import gc
from sidecar.app.settling import settle
class Ring: pass
for _ in range(1000):
    ring = Ring(); ring.itself = ring
del ring
settle()
print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 1_000, sum(isinstance(o, Ring) for o in gc.get_objects()))
"""


def test_what_start_up_made_is_set_aside_and_what_it_left_behind_is_gone():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", "True", "0"]
