"""Once everything is loaded: what start-up left behind is given back, and what stays is never looked through again."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
from collections.abc import Iterator

_PT_LOAD, _PT_DYNAMIC = 1, 2
_PF_W = 2
_DT_TEXTREL, _DT_FLAGS, _DF_TEXTREL = 22, 30, 4


class _Segment(ctypes.Structure):
    """Elf64_Phdr."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("offset", "vaddr", "paddr", "filesz", "memsz", "align")),
    )


class _Library(ctypes.Structure):
    """The beginning of dl_phdr_info."""

    _fields_ = (
        ("addr", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("number", ctypes.c_uint16),
    )


def settle() -> None:
    """Takes some 50 ms, once. Without it each full collection goes through every module's objects again."""
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; elsewhere the allocator gives back by itself
    if trim is not None:
        trim(0)
    unmap_library_pages()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """While thousands of rules are loaded: nearly all that is made stays, and looking through it again and again for
    garbage would hold up the evaluation beside it by a third of a second at a time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def unmap_library_pages() -> int:
    """Unmaps what libraries have mapped of their files; what is still used is mapped again, page by page, at its next
    use. Returns the bytes of address space it was done for.

    Loading a library touches far more of it than its use later on, and the kernel maps sixteen pages around each one
    that is touched. They stay in the page cache, from which the kernel takes them sooner once nobody maps them.
    Only segments that are never written: a page with a change in it would lose it.
    """
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return 0
    # PyDLL keeps Python's lock. Given up, another thread could take it and then wait, inside an import, for the lock of
    # the loader, which is held here: both would wait for ever.
    libc = ctypes.PyDLL(None)
    each, madvise = getattr(libc, "dl_iterate_phdr", None), getattr(libc, "madvise", None)
    if each is None or madvise is None:
        return 0
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    page, done = mmap.PAGESIZE, 0

    def visit(library: ctypes._Pointer[_Library], size: int, data: int | None) -> int:
        nonlocal done
        for begin, end in _unwritten(library.contents):
            begin, end = begin // page * page, -(-end // page) * page
            if madvise(begin, end - begin, mmap.MADV_DONTNEED) == 0:
                done += end - begin
        return 0

    # Inside the visit no library can be unloaded, so an address stays what it was when it was looked up.
    each(ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)(visit), None)
    return done


def _unwritten(library: _Library) -> Iterator[tuple[int, int]]:
    """(first address, one past the last) of every segment of a file that was mapped and never written to."""
    if library.name and not library.name.startswith(b"/"):
        return  # the kernel's own: no file
    segments = [library.segments[i] for i in range(library.number)]
    if any(_relocates_text(library.addr + s.vaddr, s.memsz) for s in segments if s.type == _PT_DYNAMIC):
        return
    for segment in segments:
        if segment.type == _PT_LOAD and not segment.flags & _PF_W:
            yield library.addr + segment.vaddr, library.addr + segment.vaddr + segment.memsz


def _relocates_text(address: int, size: int) -> bool:
    """Whether a library's dynamic section says that its code was changed when it was loaded."""
    entries = (ctypes.c_uint64 * (size // 8)).from_address(address)
    return any(
        tag == _DT_TEXTREL or (tag == _DT_FLAGS and value & _DF_TEXTREL)
        for tag, value in zip(entries[::2], entries[1::2], strict=True)
    )
