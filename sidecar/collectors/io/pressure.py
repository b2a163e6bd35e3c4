"""Pressure stall information: how long tasks stood still for want of a resource."""

from __future__ import annotations

import errno
import re
from pathlib import Path

_LINE = re.compile(r"^(some|full) .*total=(\d{1,19})", re.M)


def totals(path: Path) -> dict[str, float]:
    """Seconds by kind: `some` task stood still, or `full`: all of them did. Empty where the kernel does not tell.

    The totals go on all the time; the averages beside them change every two seconds only, and are not used. Raises
    OSError but for a file that is not there (no pressure information, or control groups v1).
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except OSError as e:
        if e.errno == errno.EOPNOTSUPP:  # compiled in, and turned off (psi=0)
            return {}
        raise
    return {kind: int(total) / 1e6 for kind, total in _LINE.findall(text)}
