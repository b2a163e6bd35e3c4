"""Why an order is not carried out."""

from __future__ import annotations


class Refused(Exception):
    """`reason` is one of `protocol.REASONS`; `detail` is for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)
