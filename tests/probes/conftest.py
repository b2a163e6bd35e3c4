"""Puts the PTX interpreter beside the tests on the path, and finds the assemblers where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fakebuild
from ptx_parser import parse

from probes import ptxbuild


def tool(distribution, name):
    """A program of a pip wheel; skips where it is not installed."""
    try:
        files = metadata.distribution(distribution).files or ()
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed (`make setup` does it on x86_64 Linux)")
    return str(next(file.locate() for file in files if file.name == name))


@pytest.fixture(scope="session")
def assemblers():
    """ptxas of CUDA 12.2, which has the PTX reader of driver 535, and of CUDA 13."""
    return {"12.2": tool("nvidia-cuda-nvcc-cu12", "ptxas"), "13": tool("nvidia-cuda-nvcc", "ptxas")}


@pytest.fixture(scope="session")
def compiler():
    """NVRTC 12.2."""
    try:
        return ptxbuild.Compiler()
    except ptxbuild.BuildError as e:
        pytest.skip(str(e))


@pytest.fixture(scope="session")
def disassembled(assemblers, tmp_path_factory):
    """SASS of a shipped file for an architecture, by function."""
    nvdisasm = tool("nvidia-cuda-nvdisasm", "nvdisasm")
    folder = tmp_path_factory.mktemp("sass")

    def sass(file, architecture):
        cubin = folder / f"{file}.{architecture}.cubin"
        subprocess.run(
            [assemblers["12.2"], "-arch", architecture, "-o", cubin, ptxbuild.SHIPPED / file], check=True, timeout=60
        )
        text = subprocess.run([nvdisasm, cubin], capture_output=True, text=True, check=True, timeout=60).stdout
        found, name = {}, ""
        for line in text.splitlines():
            if line.startswith(".text."):
                name = line.removeprefix(".text.").rstrip(":")
            elif name:
                found[name] = found.get(name, "") + line + "\n"
        return found

    return sass


@pytest.fixture(scope="session")
def kernels():
    """Every shipped kernel for compute 8.0, parsed from the bytes that ship."""
    found = {}
    for file in sorted(ptxbuild.SHIPPED.glob("*.80.ptx")):
        found |= parse(file.read_text())
    return found


@pytest.fixture(scope="session")
def fake_gpu(tmp_path_factory):
    """Makes the environment of a child whose libcuda is the fake one; faults as keyword arguments."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing: the fake driver cannot be built")
    built = fakebuild.build(tmp_path_factory.mktemp("fakecuda"))

    def environ(**faults):
        return {**os.environ, **built, **{f"FAKE_CUDA_{name.upper()}": str(value) for name, value in faults.items()}}

    return environ
