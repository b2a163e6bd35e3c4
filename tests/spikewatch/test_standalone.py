"""In the trainer there is nothing but the standard library and, maybe, torch."""

import subprocess
import sys
from pathlib import Path

import pytest

import spikewatch

ROOT = Path(spikewatch.__file__).parents[1]
MODULES = sorted(f"spikewatch.{file.stem}" for file in (ROOT / "spikewatch").glob("*.py") if file.stem != "__main__")


def python(code, *flags):
    return subprocess.run(
        [sys.executable, *flags, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_every_module_is_imported_by_a_bare_interpreter():
    assert len(MODULES) > 10
    done = python("\n".join(f"import {name}" for name in [*MODULES, "spikewatch.__main__"]), "-I", "-S")
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_and_attaching_never_imports_torch():
    done = python(
        "import spikewatch\n"
        "run = spikewatch.attach(loader=[1, 2], socket='/nowhere/s')\n"
        "for item in run.loader: run.step(float(item))\n"
        "run.close()\n"
        "print(sorted({'torch', 'numpy', 'asyncio', 'pydantic'} & set(sys.modules)))"
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_console_script_without_the_sidecars_dependencies_says_what_to_install():
    done = python("from spikewatch.__main__ import main\nmain()", "-I", "-S")
    assert done.returncode == 2
    assert "pip install spikewatch" in done.stderr


def test_the_console_script_reaches_the_command_line():
    done = python("from spikewatch.__main__ import main\nsys.argv = ['spikewatch', '--no-such-option']\nmain()")
    assert done.returncode == 2
    assert "Usage: spikewatch" in done.stderr


SCRIPT = """
import torch, spikewatch
from torch.utils.data import DataLoader
class Data:
    def __len__(self): return 4000
    def __getitem__(self, i): return i
loader = DataLoader(Data(), batch_size=2, num_workers=2, persistent_workers={persistent})
run = spikewatch.attach(loader=loader, socket="/nowhere/s")
batches = iter(run.loader)
for number in range(12):
    next(batches)
    if number == 4:
        run._parts.ledger.set("a", {{"num_workers": 3}}, {{}}, 600_000)
    run.step()
assert loader.num_workers == 3
print("workers", *(worker.pid for worker in batches._workers), flush=True)
{ending}
"""


@pytest.mark.torch
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("persistent", "ending", "code"), [(True, "", 0), (False, "raise SystemExit(3)", 3), (True, "1 / 0", 1)]
)
def test_an_interpreter_that_ends_amid_a_pass_ends_promptly_and_with_its_workers(persistent, ending, code):
    done = python(SCRIPT.format(persistent=persistent, ending=ending))
    assert done.returncode == code, done.stderr
    assert done.stderr == "" or "ZeroDivisionError" in done.stderr
    pids = done.stdout.split()[1:]
    assert pids
    assert [pid for pid in pids if alive(pid)] == []


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
