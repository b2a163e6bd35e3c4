"""The actuator of the remediation `webhook`: one request that applies a change, and one that takes it back.

Requests leave from the event loop and nobody waits for them; `outcome` tells what became of them. What was asked for is
on disk before it is asked for, so that a sidecar that was killed in between takes it back after its restart. A change
that nobody renews is taken back when its lease ends, as a trainer does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sidecar.actuators.egress import EgressList
from sidecar.clock import Clock
from sidecar.errors import ChannelError
from sidecar.model import ChangeState, Knob, KnobValue, Order, Outcome, TrainerIdentity

if TYPE_CHECKING:
    import httpx

REQUEST = "request"
MAX_CHANGES = 64  # remembered; the oldest that are over go first
MAX_REDIRECTS = 3
FIRST_RETRY_MS, LAST_RETRY_MS = 1_000, 60_000

_OVER = (ChangeState.REFUSED, ChangeState.REVERTED, ChangeState.KEPT)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Asked:
    """One change. `undoing`: a revert is wanted; `lease_end_ms` counts on the wall clock, to survive a restart."""

    change_id: str
    url: str
    undo_url: str
    body: dict[str, Any]
    state: str
    lease_end_ms: int
    reason: str = ""
    by: str = ""
    undoing: bool = False
    tries: int = 0
    retry_at_ms: int = 0


class HttpActuator:
    """Use on one running event loop. `file` keeps what must survive a restart."""

    name: ClassVar[str] = "http"

    def __init__(
        self,
        egress: EgressList,
        file: Path,
        clock: Clock,
        *,
        timeout_ms: int = 5_000,
        token_file: Path | None = None,
        judged: Callable[[], TrainerIdentity | None] = lambda: None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Takes over what a former process left in `file`; one that makes no sense is set aside, and that is logged.

        `judged` is the trainer by which a request's effect is judged: while one thing is tried on it, nothing else is.
        """
        self._egress, self._file, self._clock, self._judged = egress, file, clock, judged
        self._timeout_s, self._token_file, self._transport = timeout_ms / 1000, token_file, transport
        self._client: httpx.AsyncClient | None = None
        self._changes: dict[str, _Asked] = _read(file)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def replace_egress(self, egress: EgressList, timeout_ms: int, token_file: Path | None = None) -> None:
        """After a reload. What was asked for before is taken back all the same, if its URL is still allowed."""
        self._egress, self._timeout_s, self._token_file = egress, timeout_ms / 1000, token_file

    async def close(self) -> None:
        """Sends nothing more. What is in effect is taken back by the next process, or kept by it."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    # --- the actuator -----------------------------------------------------------------------------------------------

    def identity(self) -> TrainerIdentity | None:
        """Who is judged, or where nobody is there the other system itself, which is always there. Every call also looks
        after leases and retries.
        """
        self._look()
        return self._judged() or TrainerIdentity("http", "", ("http",), (0,), 1)

    def knobs(self) -> Mapping[str, Knob]:
        """`request`, always empty: each change is one of its own. None where no egress is allowed."""
        return {REQUEST: Knob(REQUEST, "")} if self._egress else {}

    def apply(self, order: Order) -> None:
        """Sends the request once it is on disk. Raises ChannelError when that fails."""
        if order.change_id in self._changes:
            return
        asked = _asked(order, self._clock.now_ms())
        denied = not (self._egress.allows(asked.url) and self._egress.allows(asked.undo_url))
        if denied and not asked.reason:
            asked.state, asked.reason = ChangeState.REFUSED.value, "egress_denied"
        self._changes[order.change_id] = asked
        self._forget()
        self._save()
        if asked.state == ChangeState.PENDING.value:
            self._start(asked, asked.url, "apply")

    def renew(self, change_id: str, lease_ms: int) -> None:
        """Prolongs the lease."""
        asked = self._changes.get(change_id)
        if asked is not None and not asked.undoing:
            asked.lease_end_ms = self._clock.now_ms() + lease_ms

    def keep(self, change_id: str) -> None:
        """No lease any more. Raises ChannelError when that cannot be written."""
        asked = self._changes.get(change_id)
        if asked is not None and asked.state == ChangeState.APPLIED.value and not asked.undoing:
            asked.state = ChangeState.KEPT.value
            self._save()

    def revert(self, change_id: str) -> None:
        """Sends the second request, again and again until it is answered. Raises ChannelError as `apply` does."""
        asked = self._changes.get(change_id)
        if asked is not None and not asked.undoing and _state(asked) not in _OVER:
            self._undo(asked, "order")

    def outcome(self, change_id: str) -> Outcome:
        """As in `hooks.Actuator`."""
        self._look()
        asked = self._changes.get(change_id)
        if asked is None:
            return Outcome(ChangeState.UNKNOWN)
        state = _state(asked)
        if asked.undoing and state is not ChangeState.REVERTED:
            state = ChangeState.PENDING
        return Outcome(state, asked.reason, -1, {REQUEST: ""}, {}, asked.by)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._closed:
            return
        now = self._clock.now_ms()
        for asked in self._changes.values():
            if _state(asked) in _OVER:
                continue
            if not asked.undoing and now >= asked.lease_end_ms:
                self._undo(asked, "lease")
            elif asked.undoing and asked.change_id not in self._tasks and now >= asked.retry_at_ms:
                self._start(asked, asked.undo_url, "revert")

    def _undo(self, asked: _Asked, by: str) -> None:
        asked.undoing, asked.by, asked.retry_at_ms = True, by, 0
        self._save()
        task = self._tasks.get(asked.change_id)
        if task is not None:  # the first request is still under way; it may arrive all the same, so the second follows
            task.cancel()
            task.add_done_callback(lambda _: self._look())
        else:
            self._start(asked, asked.undo_url, "revert")

    def _start(self, asked: _Asked, url: str, action: str) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(asked, url, action), name=f"http {action}")
        self._tasks[asked.change_id] = task
        task.add_done_callback(lambda done: self._ended(asked.change_id, done))

    def _ended(self, change_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(change_id) is task:
            del self._tasks[change_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("http: %s: %s", change_id, error)

    async def _ask(self, asked: _Asked, url: str, action: str) -> None:
        refusal = await self._post(url, {**asked.body, "action": action, "change_id": asked.change_id})
        if action == "apply":
            # Refused by an answer, it is not in effect. Without an answer nobody knows, so it is taken back.
            if refusal.startswith("no_answer"):
                asked.reason = refusal
                asked.undoing, asked.by = True, "order"
            elif refusal:
                asked.state, asked.reason = ChangeState.REFUSED.value, refusal
            else:
                asked.state = ChangeState.APPLIED.value
        elif not refusal:
            asked.state = ChangeState.REVERTED.value
        else:
            asked.tries += 1
            wait = min(FIRST_RETRY_MS << min(asked.tries, 10), LAST_RETRY_MS)
            asked.reason, asked.retry_at_ms = f"revert_{refusal}", self._clock.now_ms() + wait
            _log.warning("%s could not be taken back (%s); again in %d ms", asked.change_id, refusal, wait)
        self._save()

    async def _post(self, url: str, body: Mapping[str, Any]) -> str:
        """Empty when it was answered with 2xx, else why not (snake_case)."""
        import httpx  # 3 MB of memory that only a sidecar with something to ask pays

        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self._transport, timeout=self._timeout_s, trust_env=False, follow_redirects=False
            )
        try:
            headers = self._headers()
        except OSError:
            return "token_unreadable"
        try:
            async with asyncio.timeout(self._timeout_s):
                for _ in range(MAX_REDIRECTS + 1):
                    if not self._egress.allows(url):
                        return "egress_denied"
                    # Streamed and never read: the answer's body is of no use, and may be endless.
                    async with self._client.stream(
                        "POST", url, json=dict(body), headers=headers, timeout=self._timeout_s
                    ) as answer:
                        if answer.status_code not in (307, 308):
                            return "" if answer.is_success else f"status_{answer.status_code}"
                        url = str(answer.url.join(answer.headers.get("location", "")))
                return "too_many_redirects"
        except TimeoutError:
            return "no_answer_in_time"
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            return f"no_answer_{type(e).__name__}"

    def _headers(self) -> dict[str, str]:
        """Raises OSError."""
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._token_file.read_text(encoding='utf-8').strip()}"}

    def _forget(self) -> None:
        over = [change_id for change_id, asked in self._changes.items() if _state(asked) in _OVER]
        for change_id in over[: max(0, len(self._changes) - MAX_CHANGES)]:
            del self._changes[change_id]

    def _save(self) -> None:
        content = json.dumps([asdict(asked) for asked in self._changes.values()])
        new = self._file.with_suffix(".new")
        try:
            with open(new, "w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._file)
        except OSError as e:
            raise ChannelError(f"{self._file}: cannot be written: {e.strerror}") from e


def _state(asked: _Asked) -> ChangeState:
    return ChangeState(asked.state)


def _asked(order: Order, now_ms: int) -> _Asked:
    value: KnobValue = order.values.get(REQUEST, "")
    try:
        request = json.loads(str(value))
        return _Asked(
            order.change_id,
            str(request["url"]),
            str(request["undo_url"]),
            dict(request["body"]),
            ChangeState.PENDING.value,
            now_ms + order.lease_ms,
        )
    except (ValueError, KeyError, TypeError):
        return _Asked(order.change_id, "", "", {}, ChangeState.REFUSED.value, now_ms, "bad_request")


def _read(file: Path) -> dict[str, _Asked]:
    try:
        left = [_Asked(**item) for item in json.loads(file.read_text(encoding="utf-8"))]
        return {asked.change_id: asked for asked in left if ChangeState(asked.state)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as e:
        aside = file.with_suffix(".corrupt")
        with contextlib.suppress(OSError):
            os.replace(file, aside)
        _log.error("%s: cannot be read, kept as %s; requests in it are not taken back: %s", file, aside.name, e)
        return {}
