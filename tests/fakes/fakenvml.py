"""Builds the stand-in for libnvidia-ml.so.1 and writes its scenarios. Needs a C compiler, nothing of NVIDIA's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
NAME = "libnvidia-ml.so.1"

# What a healthy Hopper has: field id → value, GPM id → percent or MiB/s.
FIELDS = {
    3: 0, 4: 0, 31: 0, 74: 0, 75: 0, 82: 55, 83: "ramp:1000000:600000", 94: 0, 138: "ramp:0:1000", 139: "ramp:0:2000",
    142: 0, 143: 0, 144: 0, 145: 0, 186: 600_000, 197: "ramp:0:1000000", 198: "ramp:0:3000000", 269: 0, 270: 0, 271: 0,
}  # fmt: skip
GPM = {2: 80, 3: 40, 5: 50, 10: 60, 20: 1000, 21: 2000, 60: 4000, 61: 3000}


def compiler() -> str | None:
    """The C compiler, where there is one."""
    return shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")


def build(folder: Path, without: Iterable[str] = ()) -> Path:
    """Compiles the library into `folder`; `without`: functions an older driver would not have."""
    folder.mkdir(parents=True, exist_ok=True)
    library, script = folder / NAME, folder / "exports"
    hidden = "".join(f" {name};" for name in without)
    script.write_text(f"{{ {'local:' + hidden if hidden else ''} }};" if hidden else "{ global: *; };")
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-w", "-o", library, SOURCE]
    flags = [f"-Wl,-soname,{NAME}", f"-Wl,--version-script={script}", "-lm", "-lpthread"]
    subprocess.run([*command, *flags], check=True, timeout=60)
    return library


class Scenario:
    """The file the library reads. Every change is one atomic replacement, seen by the next call."""

    def __init__(self, file: Path, gpus: int = 1, *, healthy: bool = True) -> None:
        self.file = file
        self.values: dict[str, float | str] = {"count": gpus}
        if healthy:
            self.values |= {"util": 90, "memutil": 50, "mem_used": 40e9, "mem_reserved": 500e6}
            self.values |= {f"field.{n}": v for n, v in FIELDS.items()}
            self.values |= {f"gpm.{n}": v for n, v in GPM.items()}
        self.set()

    def set(self, values: Mapping[str, float | str] | None = None, **more: float | str) -> None:
        """Changes values: `set({"gpu0.util": 5}, count=2)`."""
        self.values |= {**(values or {}), **more}
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self.values.items()))
        new.replace(self.file)

    def clear(self, *keys: str) -> None:
        """Takes values out again."""
        for key in keys:
            del self.values[key]
        self.set()

    @property
    def environment(self) -> dict[str, str]:
        """What the process that loads the library must have in its environment."""
        return {"FAKE_NVML": str(self.file)}
