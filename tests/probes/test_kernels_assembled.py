"""What ships is what the sources give, assembles for every GPU it is meant for, and is still the kernel it was."""

from __future__ import annotations

import locale
import re
import subprocess

import numpy as np
import pytest
from ptx_machine import run
from ptx_memory import Memory
from ptx_parser import parse

from probes import ptxbuild

ARCHITECTURES = {
    "75": {"12.2": ("sm_75",), "13": ("sm_75",)},
    "80": {"12.2": ("sm_80", "sm_86", "sm_89", "sm_90"), "13": ("sm_80", "sm_90", "sm_100", "sm_120")},
    "90a": {"12.2": ("sm_90a",), "13": ("sm_90a",)},
}
FILES = [ptxbuild.file_name(name, target) for name, targets in ptxbuild.TARGETS.items() for target in targets]


def test_the_sources_give_the_shipped_bytes(compiler):
    built = ptxbuild.build()
    assert sorted(built) == sorted(FILES)
    assert [name for name, text in built.items() if (ptxbuild.SHIPPED / name).read_text() != text] == []


def test_nothing_else_is_shipped_and_all_of_it_is_small():
    files = list(ptxbuild.SHIPPED.iterdir())
    assert sorted(file.name for file in files) == sorted(FILES)
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.mark.parametrize("file", FILES)
def test_a_driver_of_release_535_reads_its_version(file):
    version = re.search(r"^\.version (\d+)\.(\d+)", (ptxbuild.SHIPPED / file).read_text(), re.MULTILINE)
    assert (int(version[1]), int(version[2])) <= (8, 2)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("release", ["12.2", "13"])
def test_it_assembles_without_spilling_a_register(assemblers, file, release, tmp_path):
    for architecture in ARCHITECTURES[file.split(".")[1]][release]:
        command = [assemblers[release], "-v", "-arch", architecture, "-o", tmp_path / "k.cubin"]
        done = subprocess.run([*command, ptxbuild.SHIPPED / file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{architecture}: {done.stderr}"
        spilled = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
        assert spilled
        assert all(set(numbers) == {"0"} for numbers in spilled), architecture


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_machine_code_loads_and_stores_sixteen_bytes_at_a_time(disassembled, architecture):
    sass = disassembled("memory.80.ptx", architecture)
    for kernel, loads, stores in (("read_vec4", 1, 0), ("copy_vec4", 1, 1), ("reduce_vec4", 2, 1)):
        wide = re.findall(r"LDG\.E\.128", sass[kernel])
        assert len(wide) >= loads, kernel
        assert len(re.findall(r"STG\.E\.128", sass[kernel])) >= stores
        assert len(wide) == len(re.findall(r"\bLDG\b", sass[kernel])), "no narrow load beside them"
    assert not re.search(r"\b(LDL|STL)\b", "".join(sass.values())), "nothing lives in local memory"
    assert re.search(r"LDG\.E\b(?!\.128)", sass["strided_read"])


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_machine_code_uses_the_tensor_cores(disassembled, architecture):
    sass = disassembled("tensor.80.ptx", architecture)
    assert len(re.findall(r"HMMA\.16816\.F32\.BF16", sass["mma_bf16"])) >= 4
    assert len(re.findall(r"HMMA\.16816\.F32\b(?!\.BF16)", sass["mma_f16"])) >= 4


def test_the_hopper_kernel_uses_its_warpgroup_instruction(disassembled):
    assert re.search(r"HGMMA\.64x128x16\.F32\.BF16", disassembled("wgmma.90a.ptx", "sm_90a")["wgmma_bf16"])


# --- mutants: what goes wrong in such kernels is noticed ---


def mutant(compiler, name, before, after):
    """The kernels of a source with one change."""
    text = ptxbuild.source(name)
    assert text.count(before) >= 1
    return parse(compiler.ptx(text.replace(before, after), "compute_80"))


def loads(kernels):
    memory = Memory()
    source, out = memory.put(np.arange(4 * 256, dtype=np.uint32)), memory.room(64)
    return run(kernels["read_vec4"], memory, 2, 64, out, source, 256, 1)


def test_a_result_nobody_needs_costs_the_loads_and_the_count_shows_it(compiler):
    idle = mutant(compiler, "memory", "if (folded == NEVER) out[0] = folded;", "")
    assert loads(idle)["global_ld_bytes"] == 0


def test_scalar_loads_show_as_four_times_the_requests(compiler):
    narrow = mutant(
        compiler,
        "memory",
        "const uint4 v = src[i];\n      folded ^= v.x ^ v.y ^ v.z ^ v.w;",
        "for (int j = 0; j < 4; j++) folded ^= ((const volatile u32*)src)[4 * i + j];",
    )
    counts = loads(narrow)
    assert counts["global_ld_bytes"] == 16 * 256
    assert counts["global_ld_requests"] == 4 * 256 // 32


def test_lost_padding_shows_as_thirty_two_wavefronts(compiler):
    walk = mutant(compiler, "shared", "tile[lane * pitch + column]", "tile[lane * 32 + column]")["bank_walk"]
    memory = Memory()
    counts = run(walk, memory, 1, 32, memory.room(128), 33, 4, memory.room(8))
    assert counts["shared_ld_wavefronts"] == 32 * counts["shared_ld_requests"]


def test_ptx_of_a_newer_version_is_refused_by_the_assembler_of_535(assemblers, tmp_path):
    newer = tmp_path / "newer.ptx"
    newer.write_text((ptxbuild.SHIPPED / "timing.80.ptx").read_text().replace(".version 8.2", ".version 9.0"))
    command = [assemblers["12.2"], "-arch", "sm_80", "-o", tmp_path / "k.cubin", newer]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Unsupported .version 9.0" in done.stderr


def test_the_hopper_instruction_for_a_plain_target_passes_the_compiler_and_fails_the_assembler(
    compiler, assemblers, tmp_path
):
    plain = tmp_path / "plain.ptx"
    plain.write_text(compiler.ptx(ptxbuild.source("wgmma"), "compute_90"))
    command = [assemblers["12.2"], "-arch", "sm_90", "-o", tmp_path / "k.cubin", plain]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_building_leaves_the_locale_of_the_process_alone(compiler):
    before = locale.setlocale(locale.LC_ALL), locale.getencoding()
    compiler.ptx(ptxbuild.source("timing"), "compute_80")
    with pytest.raises(ptxbuild.BuildError):
        compiler.ptx("nonsense", "compute_80")
    assert (locale.setlocale(locale.LC_ALL), locale.getencoding()) == before


def test_a_source_with_a_mistake_says_where(compiler):
    with pytest.raises(ptxbuild.BuildError, match=r"broken\.cu\(1\): error"):
        compiler.ptx('extern "C" __global__ void k() { x = 1; }\n', "compute_80", "broken.cu")
