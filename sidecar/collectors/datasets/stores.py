"""Where datasets lie: folders of this machine, or whatever fsspec opens (s3://, gs://, …). Names, sizes, contents."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

from sidecar.errors import CollectError, shown_url

NAME = "datasets"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a folder."""

    path: str
    folder: bool
    size: int  # bytes as stored; 0 for folders

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2]


class Store(Protocol):
    """Lists folders and opens files. Both raise OSError, or whatever a cloud's library raises."""

    root: str

    def entries(self, folder: str) -> Iterator[Entry]:
        """What is in a folder; of a file that file itself."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """The file's contents, for reading a little at its end."""
        ...


class Local:
    """Folders of this machine. Links to folders are not followed: they may lead in circles."""

    def __init__(self, root: str) -> None:
        self.root = root

    def entries(self, folder: str) -> Iterator[Entry]:
        """As they come; a file that vanishes meanwhile is left out."""
        found = os.stat(folder)
        if stat.S_ISREG(found.st_mode):
            yield Entry(folder, False, found.st_size)
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield Entry(entry.path, True, 0)
                    continue
                try:
                    status = entry.stat()
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield Entry(entry.path, False, status.st_size)

    def open(self, path: str) -> IO[bytes]:
        """An open file."""
        return open(path, "rb")


class Remote:
    """A file system of fsspec's. One folder is listed by one call, however large it is."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Raises CollectError without fsspec, or the package that knows the protocol."""
        try:
            import fsspec  # only a cluster that has such datasets pays for it
        except ImportError:
            raise CollectError(NAME, "no_fsspec", f"{shown_url(url)}: install spikewatch[cluster]") from None
        try:
            self._files, self.root = fsspec.core.url_to_fs(url, **options)
        except (ValueError, ImportError) as e:
            raise CollectError(NAME, "no_protocol", f"{shown_url(url)}: {e}") from None
        self._files.invalidate_cache()  # made for an earlier reading, it would tell that one's sizes again

    def entries(self, folder: str) -> Iterator[Entry]:
        """Object stores list a folder's own marker with it: such an entry is left out."""
        for found in self._files.ls(folder, detail=True):
            path, is_folder = str(found["name"]), found.get("type") == "directory"
            if not (is_folder and path.strip("/") == folder.strip("/")):
                yield Entry(path, is_folder, 0 if is_folder else int(found.get("size") or 0))

    def open(self, path: str) -> IO[bytes]:
        """Fetches small blocks: a footer is read from its end, and reading ahead would fetch what nobody wants."""
        opened: IO[bytes] = self._files.open(path, "rb", block_size=1 << 16)
        return opened


def store(path: str, options: Mapping[str, Any]) -> Store:
    """By the path's protocol; without one it is local."""
    return Remote(path, options) if "://" in path else Local(path)
