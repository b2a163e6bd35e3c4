"""PromQL over the store: compile expressions once, bind them to a store, evaluate them at every tick.

program = promql.compile(["rate(requests_total[5m]) > 10"])
store.reserve(program.needs())
evaluator = program.bind(store)
evaluator.at("rate(requests_total[5m]) > 10", now_ms)
"""

from sidecar.promql.matrix import Series
from sidecar.promql.operator import Limits
from sidecar.promql.plan import LOOKBACK_MS, kind
from sidecar.promql.program import Evaluator, Program, Vector, compile
from sidecar.promql.rewrite import canonical, increments
from sidecar.store import Store

__all__ = [
    "LOOKBACK_MS",
    "Evaluator",
    "Limits",
    "Program",
    "Series",
    "Vector",
    "canonical",
    "compile",
    "evaluate",
    "increments",
    "kind",
]


def evaluate(
    store: Store, expr: str, t_ms: int, interval_ms: int = 1000, limits: Limits | None = None
) -> Vector | float | str:
    """One instant query, read from the ring. Raises QueryError."""
    return compile([expr]).bind(store, "naive", interval_ms, limits=limits).at(expr, t_ms)
