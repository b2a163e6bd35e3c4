"""Every rank's part of an agreement: hears proposals, says yes or aborts, learns verdicts, reports."""

from __future__ import annotations

from collections.abc import Callable

from spikewatch.agreement_board import KEEP_VERSIONS, NONE, Board, Report
from spikewatch.change import Proposal, Verdict
from spikewatch.promises import Promises
from spikewatch.refusal import Refused


class Member:
    """Called on the agreement's thread only."""

    def __init__(self, board: Board, rank: int, promises: Promises, steps: Callable[[], int]) -> None:
        self._board = board
        self._rank = rank
        self._promises = promises
        self._steps = steps
        self._session = ""
        self._seen = NONE

    def hear(self, latest: int) -> None:
        """Answers every proposal up to the newest, `latest`, that it has not heard yet."""
        if self._board.session != self._session:
            self._session, self._seen = self._board.session, max(NONE, latest - KEEP_VERSIONS)
        while self._seen < latest:
            self._seen += 1
            proposal = self._board.proposal(self._seen)
            if proposal is not None:
                self._hear(proposal)

    def _hear(self, proposal: Proposal) -> None:
        if proposal.kind == "keep":
            self._promises.kept(proposal.change_id)
            return
        if self._board.verdict(proposal.version) is not None:
            return  # too late: without this rank's yes it can only be an abort
        try:
            lag = self._promises.prepare(proposal)
        except Refused as refusal:
            self._abort(proposal.version, refusal.reason, refusal.detail)
            return
        # The appointment is noted before the step is read. If the training thread has passed the appointed step by
        # then, it may not have seen it, and this rank must not say yes; if not, it will see it.
        if self._steps() >= proposal.at:
            self._promises.decided(proposal.version, self._abort(proposal.version, "late", "the step was over"))
        else:
            self._board.answer(proposal.version, self._rank, lag)

    def _abort(self, version: int, reason: str, detail: str) -> Verdict:
        return self._board.decide(version, Verdict(False, rank=self._rank, reason=reason, detail=detail))

    def learn(self) -> bool:
        """Looks for verdicts. Whether this rank still waits for one."""
        waiting = False
        for version in self._promises.undecided():
            verdict = self._board.verdict(version)
            if verdict is None:
                waiting = True
            else:
                self._promises.decided(version, verdict)
        return waiting

    def insist(self, version: int) -> Verdict:
        """The appointed step is here: what is not decided now is aborted for all."""
        return self._abort(version, "late", "the step came before all ranks had answered")

    def report(self, version: int, digest: str, failure: str) -> None:
        """This rank has carried it out."""
        self._board.report(version, self._rank, Report(digest, failure))
