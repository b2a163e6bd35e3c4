"""After start-up nothing is kept that only start-up needed, in memory or in what is loaded."""

import subprocess
import sys

import pytest

GARBAGE = """
import gc
from sidecar.app.settling import settle
class Ring: pass
for _ in range(1000):
    ring = Ring(); ring.itself = ring
del ring
settle()
print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 1_000, sum(isinstance(o, Ring) for o in gc.get_objects()))
"""

PAGES = """
import hashlib, sqlite3, ssl, threading
import numpy, pydantic, re2
from sidecar.app.settling import unmap_library_pages

def file_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssFile"))

def use():
    a = numpy.arange(1.0, 10_001.0).reshape(100, 100) + numpy.eye(100)
    text = sqlite3.connect(":memory:").execute("select upper('w') || ?", (re2.sub("o+", "0", "foo"),)).fetchone()[0]
    return text, hashlib.sha256(numpy.linalg.inv(a).tobytes()).hexdigest(), ssl.create_default_context().verify_mode

expected, wrong, stop = use(), [], threading.Event()
def go_on():
    while not stop.is_set():
        if use() != expected:
            wrong.append(1)
busy = threading.Thread(target=go_on)
busy.start()
before = file_kb()
unmapped = [unmap_library_pages() for _ in range(20)]
stop.set()
busy.join()
unmap_library_pages()
print(min(unmapped) > 1 << 20, file_kb() < before / 2, use() == expected, not wrong)
"""

# What only some configurations need: each is imported where it is used, by who uses it.
LATER = ("httpx", "prometheus_client", "urllib.request", "numpy.ma", "boto3", "pyarrow", "fsspec", "rich", "torch")
LOADED = f"""
import sys
import sidecar.cli.run, sidecar.app
from sidecar.plugins import Registry
registry = Registry()
registry.discover()
print(len(registry.collectors) > 5, *sorted(set({LATER!r}) & set(sys.modules)))
"""


def printed(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_start_up_made_is_set_aside_and_what_it_left_behind_is_gone():
    assert printed(GARBAGE) == ["True", "True", "0"]


@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="segments are told apart on 64 bits only")
def test_pages_of_libraries_that_nobody_uses_are_given_back_while_others_go_on_using_them():
    assert printed(PAGES) == ["True"] * 4


def test_what_only_some_configurations_need_is_not_loaded_by_all():
    assert printed(LOADED) == ["True"]
