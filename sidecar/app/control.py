"""What people and other systems may ask of the responses: yes, no, stop, and alerts of an Alertmanager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sidecar.app import records
from sidecar.clock import Clock
from sidecar.errors import RequestError, ResponseError, StateError
from sidecar.model import JSON, Alert, Labels
from sidecar.outputs.silences import HeardSilence
from sidecar.responses import journal
from sidecar.responses.engine import Responder
from sidecar.responses.inbox import Inbox
from sidecar.responses.killswitch import KillSwitch
from sidecar.responses.silences import Silence, Silences, silence

_log = logging.getLogger(__name__)


class SilencedAlerts:
    """Whether an alert is silenced, as its Alertmanager sees it: with the external labels."""

    def __init__(self, clock: Clock, external: Callable[[], Mapping[str, str]]) -> None:
        self._clock, self._external = clock, external
        self._silences = Silences()

    def __call__(self, alert: Alert) -> str:
        """The id of the silence; empty where there is none."""
        labels = {**self._external(), **dict(alert.labels), "alertname": alert.name}
        return self._silences.by(labels, self._clock.now_ms())

    def learn(self, source: str, heard: Sequence[HeardSilence]) -> None:
        """An Alertmanager's list. A silence that cannot be understood is left out, and said."""
        found: list[Silence] = []
        for one in heard:
            try:
                found.append(silence(one.id, one.starts_ms, one.ends_ms, one.conditions))
            except ValueError as e:
                _log.warning("silence %s of %s is not respected: %s", one.id, source, e)
        self._silences.learn(source, found)

    def only(self, sources: Sequence[str]) -> None:
        """After a reload: those that are still configured."""
        self._silences.forget_all_but(sources)


class Control:
    """The API's and the command line's way to the responder. Use from the event loop's thread."""

    def __init__(
        self,
        responder: Responder,
        switch: KillSwitch,
        clock: Clock,
        *,
        log: journal.Journal,
        external: Callable[[], Mapping[str, str]],
        firing: Callable[[], Sequence[Labels]],
    ) -> None:
        """`firing`: the labels of our own rules' alerts that fire now."""
        self._responder, self._switch, self._clock, self._journal = responder, switch, clock, log
        self._external, self._firing = external, firing
        self._inbox = Inbox()

    # --- looking ----------------------------------------------------------------------------------------------------

    def responses(self) -> Sequence[JSON]:
        """Every response, how far it may go, and its breakers."""
        return [
            records.response(response, mode, self._responder.breakers(response.name))
            for response, mode in self._responder.responses()
        ]

    def approvals(self) -> Sequence[JSON]:
        """Plans that wait for an answer, oldest first."""
        return [
            records.waiting(episode, attempt, response, attempt.planned_at_ms + self._responder.expires_ms(response))
            for episode, attempt, response in self._responder.waiting()
        ]

    def experiments(self) -> Sequence[JSON]:
        """Those under way."""
        return [records.experiment(x) for x in self._responder.experiments()]

    def journal(self, wanted: journal.Wanted) -> Sequence[JSON]:
        """Entries, oldest first."""
        return records.entries(journal.read(self._journal.db, wanted))

    def kill_switch(self) -> JSON:
        """Whether it is on, who turned it on, when and why."""
        return records.kill_switch(self._switch.on())

    # --- asking -----------------------------------------------------------------------------------------------------

    def approve(self, episode: str, response: str, by: str, valid_ms: int | None) -> None:
        """Raises RequestError: 404 where nothing of that name waits, 409 where it is decided already."""
        with self._answered(episode, response):
            self._responder.approve(episode, response, by, self._clock.now_ms(), valid_ms=valid_ms)

    def reject(self, episode: str, response: str, by: str) -> None:
        """As `approve`."""
        with self._answered(episode, response):
            self._responder.reject(episode, response, by, self._clock.now_ms())

    def reset(self, response: str, by: str) -> None:
        """Closes the breakers of a response. Raises RequestError 404."""
        with _as_requests():
            self._responder.reset_breaker(response, by, self._clock.now_ms())

    def halt(self, by: str, reason: str) -> JSON:
        """Turns the kill switch on: nothing is sent from here on. Raises RequestError 503 where it cannot be noted."""
        with _as_requests():
            self._switch.engage(by, reason, self._clock.now_ms())
        return self.kill_switch()

    def resume(self, by: str) -> JSON:
        """Turns it off. Raises RequestError 409 where it is not on, or the platform's is."""
        with _as_requests(status=409, kind="conflict"):
            self._switch.release()
        _log.warning("the kill switch was turned off by %s", by)
        return self.kill_switch()

    def receive(self, body: bytes) -> JSON:
        """A message of an Alertmanager. Raises RequestError: 400 for what is none, 503 so that it is sent again."""
        now, external = self._clock.now_ms(), self._external()
        firing = frozenset(self._firing())
        with _as_requests(status=400, kind="bad_data"):
            got = self._inbox.take(body, now, external=external, fires_here=firing.__contains__)
            if got.events:
                self._responder.on_events(got.events, now)
        return {"edges": len(got.events), "ignored": dict(got.ignored)}

    def tick(self, now_ms: int) -> None:
        """Ends alerts that no Alertmanager repeats any more."""
        if events := self._inbox.lapsed(now_ms):
            self._responder.on_events(events, now_ms)

    @contextmanager
    def _answered(self, episode: str, response: str) -> Iterator[None]:
        try:
            with _as_requests():
                yield
        except RequestError as e:
            decided = self._responder.decision(episode, response) if e.status == 404 else ""
            if decided:
                raise RequestError(f"{response} is decided already: {decided}", 409, "conflict") from None
            raise


@contextmanager
def _as_requests(status: int = 404, kind: str = "not_found") -> Iterator[None]:
    try:
        yield
    except ResponseError as e:
        raise RequestError(str(e), status, kind) from None
    except StateError as e:
        raise RequestError(str(e), 503, "unavailable") from None
