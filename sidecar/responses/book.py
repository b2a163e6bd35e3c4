"""The book of open episodes: edges open and end them, and every (episode, response) gets its one decision here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sidecar.errors import ResponseError
from sidecar.model import AlertEvent, Edge
from sidecar.responses.episode import Attempt, Episode, Key, Refusal, answering, episode_id, fired_at, key_of
from sidecar.responses.records import Records, described
from sidecar.responses.response import Response
from sidecar.responses.tally import Tally


class Book:
    """Episodes in memory, with what they decide written through `records`. Commits nothing itself."""

    def __init__(self, records: Records, tally: Tally, *, max_open: int, on_trial: Callable[[Episode], bool]) -> None:
        """`on_trial` tells whether an experiment of that episode is under way, which keeps it open."""
        self._records, self._tally = records, tally
        self._max_open, self._on_trial = max_open, on_trial
        self._open: OrderedDict[str, Episode] = OrderedDict()
        self._firing: dict[Key, Episode] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Episode]:
        """The open episodes, oldest first."""
        return iter(sorted(self._open.values(), key=lambda e: (e.opened_at_ms, e.id)))

    def get(self, identifier: str) -> Episode | None:
        """An open episode."""
        return self._open.get(identifier)

    def turns(self, most: int) -> Iterator[Episode]:
        """Up to `most` episodes, those that have waited longest for their turn first."""
        for episode in list(islice(self._open.values(), most)):
            self._open.move_to_end(episode.id)
            yield episode

    # --- edges ------------------------------------------------------------------------------------------------------

    def take(self, events: Sequence[AlertEvent], responses: Iterable[Response], now_ms: int) -> None:
        """Alert edges, in order: notes each, opens an episode on firing, ends it on resolved."""
        responses = tuple(responses)
        ends = (Edge.FIRING, Edge.RESOLVED)
        ids = [episode_id(e.alert, fired_at(e.alert, e.at_ms)) for e in events if e.edge in ends]
        known = self._records.known(ids) | {e.id for e in self._firing.values()}
        for event in events:
            # State taken over from before a restart opens nothing.
            opens = event.edge is Edge.FIRING and not event.restored
            tried = answering(responses, event.alert) if event.edge in ends and not event.restored else []
            self._records.edge(event, [r.name for r in tried] if opens else [])
            if event.edge is Edge.RESOLVED:
                self._resolved(event, tried, known, now_ms)
            elif tried:
                self._opened(event, tried, known, now_ms)

    def _opened(self, event: AlertEvent, responses: list[Response], known: set[str], now_ms: int) -> None:
        alert = event.alert
        identifier = episode_id(alert, fired_at(alert, event.at_ms))
        if identifier in known:
            return  # the same edge again
        known.add(identifier)
        former = self._firing.get(key_of(alert))
        if former is not None:  # its end was lost on the way
            self._end(former, now_ms)
        episode = Episode(identifier, alert, now_ms, [Attempt(r.name) for r in responses])
        self._records.opened(episode)
        if len(self._open) >= self._max_open:
            for attempt in episode.attempts:
                self.decide(episode, attempt, Refusal("episode_limit"), now_ms)
            self.close(episode, "episode_limit", now_ms)
            return
        self._firing[key_of(alert)] = episode
        self._open[episode.id] = episode

    def _resolved(self, event: AlertEvent, responses: list[Response], known: set[str], now_ms: int) -> None:
        identifier = episode_id(event.alert, fired_at(event.alert, event.at_ms))
        if responses and identifier not in known:
            # Its beginning has not been heard of; if that still comes, it must not open what is already over.
            known.add(identifier)
            self._records.opened(Episode(identifier, event.alert, now_ms, []))
            self._records.closed(identifier, "resolved", now_ms)
        episode = self._firing.get(key_of(event.alert))
        # An end from before this beginning is an old message that comes late.
        if episode is not None and event.at_ms >= fired_at(episode.alert, episode.opened_at_ms):
            self._end(episode, now_ms)

    def _end(self, episode: Episode, now_ms: int) -> None:
        episode.resolved = True
        self._firing.pop(key_of(episode.alert), None)
        self._decide_all(episode, Refusal("resolved"), now_ms)
        if not self._on_trial(episode):
            self.close(episode, "resolved", now_ms)

    # --- decisions --------------------------------------------------------------------------------------------------

    def wait(self, episode: Episode, attempt: Attempt, refusal: Refusal, now_ms: int) -> None:
        """A passing refusal: noted the first time it is given, looked at again on the next turn."""
        attempt.waits_for = refusal.reason
        if refusal.reason not in attempt.waited:
            attempt.waited.append(refusal.reason)
            self._records.waiting(episode, attempt, refusal.detail, now_ms)

    def decide(self, episode: Episode, attempt: Attempt, refusal: Refusal, now_ms: int, **data: Any) -> None:
        """The decision. `data` says more; the plan and the reasons it waited for are added."""
        attempt.decided, attempt.waits_for = refusal.reason, ""
        self._records.decided(
            episode.id,
            attempt.response,
            refusal.reason,
            now_ms,
            detail=refusal.detail,
            waited=attempt.waited,
            plan=described(attempt.plan),
            **data,
        )
        self._tally.decision(refusal.reason)

    def close(self, episode: Episode, reason: str, now_ms: int) -> None:
        """The end of an episode; its attempts are all decided."""
        episode.closed = True
        self._open.pop(episode.id, None)
        self._firing.pop(key_of(episode.alert), None)
        self._records.closed(episode.id, reason, now_ms)

    # These three yield after each episode: there may be thousands, and whoever commits does not let them pile up.

    def interrupt(self, now_ms: int) -> Iterator[None]:
        """Ends everything that is open because the process ends."""
        for episode in self:
            self._decide_all(episode, Refusal("interrupted"), now_ms)
            self.close(episode, "interrupted", now_ms)
            yield

    def take_over(self, now_ms: int) -> Iterator[None]:
        """Ends what a former process left open: its alerts open episodes anew only with a new edge."""
        for identifier, undecided in self._records.unfinished():
            for response in undecided:
                self._records.decided(identifier, response, "interrupted", now_ms)
                self._tally.decision("interrupted")
            self._records.closed(identifier, "interrupted", now_ms)
            yield

    def drop_missing(self, responses: Iterable[str], now_ms: int) -> Iterator[None]:
        """Ends the attempts of responses that a reload has removed."""
        there = set(responses)
        for episode in self:
            for attempt in episode.undecided:
                if attempt.response not in there:
                    self.decide(episode, attempt, Refusal("response_removed"), now_ms)
            yield

    def waiting_for_approval(self) -> list[tuple[Episode, Attempt]]:
        """Every plan that is shown and not answered, oldest episode first."""
        return [(e, a) for e, a in self._answerable() if not a.approved_by]

    @property
    def unanswered(self) -> int:
        """How many plans wait for an answer."""
        waits = "awaiting_approval"
        return sum(a.waits_for == waits and not a.approved_by for e in self._open.values() for a in e.attempts)

    def awaiting(self, identifier: str, response: str) -> tuple[Episode, Attempt]:
        """The attempt that waits for an approval, or has one and has not begun: a yes can be taken back until then.
        Raises ResponseError that lists those that wait.
        """
        for episode, attempt in self._answerable():
            if episode.id == identifier and attempt.response == response:
                return episode, attempt
        waiting = self.waiting_for_approval()
        known = f"these do: {', '.join(f'{e.id} {a.response}' for e, a in waiting[:10])}" if waiting else "nothing does"
        raise ResponseError(f"{response} does not wait for an approval in episode {identifier}; {known}")

    def _answerable(self) -> list[tuple[Episode, Attempt]]:
        waits = "awaiting_approval"
        return [(e, a) for e in self for a in e.undecided if a.plan and (a.waits_for == waits or a.approved_by)]

    def _decide_all(self, episode: Episode, refusal: Refusal, now_ms: int) -> None:
        for attempt in episode.undecided:
            self.decide(episode, attempt, refusal, now_ms)
