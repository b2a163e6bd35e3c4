"""`make ptx`: the kernels to PTX by an NVRTC old enough that drivers from 535 on take the result.

    python -m probes.ptxbuild [--check] [FOLDER]

Needs the development packages only: NVRTC 12.2 (`nvidia-cuda-nvrtc-cu12`), found beside the interpreter. The same
sources and the same NVRTC give the same bytes, so a test can compare what is shipped with what is built.
"""

from __future__ import annotations

import ctypes
import sys
from importlib import metadata
from pathlib import Path

KERNELS = Path(__file__).parent / "kernels"
SHIPPED = Path(__file__).parent / "ptx"
NVRTC = "nvidia-cuda-nvrtc-cu12"
VERSION = "12.2.140"
"""Emits PTX 8.2, which is what the driver of CUDA 12.2 (535) reads; newer ones read it too."""

TARGETS: dict[str, tuple[str, ...]] = {
    "memory": ("compute_75", "compute_80"),
    "shared": ("compute_75", "compute_80"),
    "timing": ("compute_75", "compute_80"),
    "fused": ("compute_75", "compute_80"),
    "tensor": ("compute_80",),
    "wgmma": ("compute_90a",),
}
"""Source → virtual architectures. bf16 mma needs 8.0; wgmma exists on 9.0a only."""


class BuildError(Exception):
    """NVRTC is missing, of another version, or refuses a source."""


def source(name: str) -> str:
    """One kernel file with its include put in: NVRTC is given text, not folders."""
    words = (KERNELS / "words.inc").read_text(encoding="utf-8")
    return (KERNELS / f"{name}.cu").read_text(encoding="utf-8").replace('#include "words.inc"\n', words)


def file_name(name: str, target: str) -> str:
    """`memory.80.ptx`."""
    return f"{name}.{target.removeprefix('compute_')}.ptx"


class Compiler:
    """NVRTC through ctypes. Raises BuildError when it is not there."""

    def __init__(self) -> None:
        try:
            found = metadata.distribution(NVRTC)
        except metadata.PackageNotFoundError:
            raise BuildError(f"install {NVRTC}=={VERSION} (make setup does)") from None
        if found.version != VERSION:
            raise BuildError(
                f"{NVRTC} is {found.version}; {VERSION} is needed, or drivers of release 535 refuse the PTX"
            )
        library = next(f for f in found.files or () if f.name.startswith("libnvrtc.so"))
        self._nvrtc = ctypes.CDLL(str(library.locate()))

    def ptx(self, text: str, target: str, name: str = "kernel.cu") -> str:
        """PTX of a source. Raises BuildError with the compiler's log."""
        uselocale = ctypes.CDLL(None).uselocale
        uselocale.argtypes, uselocale.restype = (ctypes.c_void_p,), ctypes.c_void_p
        before = uselocale(None)
        try:
            return self._ptx(text, target, name)
        finally:
            uselocale(before)  # NVRTC leaves the thread with the locale "C", and text would be read as ASCII

    def _ptx(self, text: str, target: str, name: str) -> str:
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
        options = [f"--gpu-architecture={target}".encode(), b"--std=c++14", b"--restrict"]
        failed = self._nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if failed:
            raise BuildError(f"{name} for {target}: {self._text(program, 'ProgramLog')}")
        try:
            return self._text(program, "PTX")
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.value.decode()

    def _call(self, function: str, *arguments: object) -> None:
        if failed := getattr(self._nvrtc, function)(*arguments):
            raise BuildError(f"{function}: error {failed}")


def build() -> dict[str, str]:
    """File name → PTX, of everything that is shipped."""
    compiler = Compiler()
    return {
        file_name(name, target): compiler.ptx(source(name), target, f"{name}.cu")
        for name, targets in TARGETS.items()
        for target in targets
    }


def main(arguments: list[str]) -> int:
    """Writes the files; with --check compares instead and returns 1 when one differs."""
    check = "--check" in arguments
    folders = [Path(a) for a in arguments if not a.startswith("-")]
    folder = folders[0] if folders else SHIPPED
    try:
        built = build()
    except BuildError as e:
        sys.stderr.write(f"probes.ptxbuild: {e}\n")
        return 1
    stale = 0
    for name, text in built.items():
        file = folder / name
        same = file.exists() and file.read_text(encoding="utf-8") == text
        stale += not same
        if not check:
            file.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{file.name}: {len(text)} bytes{'' if same else ', differs' if check else ', written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
