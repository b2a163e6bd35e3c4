"""Builds the fake driver and the product's kernels for the CPU."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from probes import ptxbuild

HERE = Path(__file__).parent / "fakecuda"
NAMES = ("memory", "shared", "timing", "fused", "tensor")
_KERNEL = re.compile(r"PROBE void (\w+)\(([^)]*)\)")


def build(folder: Path) -> dict[str, str]:
    """The environment under which `libcuda.so.1` is the fake one. Needs g++."""
    library, kernels = folder / "libcuda.so.1", folder / "libkernels.so"
    _compile(HERE / "fakecuda.cpp", library, "-Wl,-soname,libcuda.so.1")
    source = folder / "kernels.cpp"
    source.write_text(starters())
    _compile(source, kernels, str(library))  # barriers and clocks are the driver's; it is loaded already by then
    return {"SPIKEWATCH_CUDA_LIBRARY": str(library), "FAKE_CUDA_KERNELS": str(kernels)}


def starters() -> str:
    """Every kernel file as it is, and for each kernel a function that takes CUDA's array of pointers to arguments."""
    text = ["#define PROBES_ON_HOST 1", '#include "host.h"']
    for name in NAMES:
        own = ptxbuild.source(name)
        # each file brings the words all use, and some the same macro names: only the first may define them
        if name != NAMES[0]:
            own = own.replace((ptxbuild.KERNELS / "words.inc").read_text(), "")
        text.append(f"#undef MMA\n#undef BODY\n{own}")
        text += [_starter(kernel[1], kernel[2]) for kernel in _KERNEL.finditer(own)]
    return "\n".join(text)


def _starter(name: str, parameters: str) -> str:
    types = []
    for parameter in filter(None, (p.strip() for p in " ".join(parameters.split()).split(","))):
        types.append(re.sub(r"\w+$", "", parameter.replace("__restrict__", "")).strip())
    values = ", ".join(f"*({kind}*)arguments[{n}]" for n, kind in enumerate(types))
    return f'extern "C" void start_{name}(void** arguments) {{ {name}({values}); }}'


def _compile(source: Path, library: Path, *more: str) -> None:
    command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-w", f"-I{HERE}", str(source), "-o", str(library)]
    done = subprocess.run([*command, *more, "-ldl"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
