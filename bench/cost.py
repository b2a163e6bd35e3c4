"""What reading a bill costs: a FOCUS export of a million rows, as CSV and as Parquet, in a process of its own.

python -m bench.cost [--json FILE] [--quick]
"""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import _rows
from bench._rows import Row, below, row

_METERS = (
    "BoxUsage:p5.48xlarge",
    "USE1-DataTransfer-Out-Bytes",
    "EBS:VolumeUsage.gp3",
    "Requests-Tier2",
    "EBS:VolumeP-IOPS",
)
_COLUMNS = (
    "BilledCost", "EffectiveCost", "ListCost", "BillingCurrency", "BillingPeriodStart", "ChargePeriodStart",
    "ChargePeriodEnd", "ChargeCategory", "ChargeClass", "ChargeDescription", "ConsumedQuantity", "ConsumedUnit",
    "ProviderName", "RegionId", "ResourceId", "ResourceName", "ServiceCategory", "ServiceName", "SkuId", "SkuMeter",
    "SkuPriceDetails", "SubAccountId", "Tags",
)  # fmt: skip
_READ = """
import json, pathlib, sys, time
from sidecar.collectors.cost.focus import FocusFile
from sidecar.collectors.cost.totals import Totals
began = time.perf_counter()
totals = Totals().take(FocusFile(sys.argv[1]).rows())
took = time.perf_counter() - began
status = pathlib.Path("/proc/self/status").read_text()
peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024
print(json.dumps([took, time.process_time(), peak, totals.rows, totals.skipped]))
"""


def write(path: Path, rows: int) -> None:
    """Two months of hourly charges of some hundred resources; every ten thousandth row cannot be read."""
    chance = random.Random(1)
    start = datetime(2026, 9, 1, tzinfo=UTC)
    hours = [(start + timedelta(hours=n)).strftime("%Y-%m-%d %H:%M:%S") for n in range(60 * 24 + 1)]
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(_COLUMNS)
        for n in range(rows):
            hour, cost = n % (60 * 24), f"{chance.random() * 10:.6f}"
            bad = "$1.00" if n % 10_000 == 9_999 else cost
            meter = _METERS[n % len(_METERS)]
            out.writerow(
                (
                    cost,
                    bad,
                    cost,
                    "USD",
                    hours[0],
                    hours[hour],
                    hours[hour + 1],
                    "Usage",
                    "NULL",
                    "",
                    "1",
                    "Hours",
                    "AWS",
                    "us-east-1",
                    f"i-{n % 700:08x}",
                    "",
                    "Compute",
                    "Amazon EC2",
                    f"SKU{n % 40}",
                    meter,
                    '{"CoreCount": 96}',
                    "123456789012",
                    '{"team": "research"}',
                )  # fmt: skip
            )


def measure(rows: int) -> dict[str, Row]:
    """Both formats."""
    found: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="spikewatch-bench-") as folder:
        files = [Path(folder) / "focus.csv"]
        write(files[0], rows)
        if (parquet := _parquet(files[0])) is not None:
            files.append(parquet)
        for file in files:
            kind = {".csv": "CSV", ".parquet": "Parquet"}[file.suffix]
            seconds, cpu, peak, read, skipped = _read(file)
            assert read + skipped == rows
            found[f"{kind}, {rows} rows"] = below(seconds, "s", 30.0)
            found[f"{kind}, processor time"] = row(cpu, "s")
            found[f"{kind}, peak memory of the process"] = below(peak / 1e6, "MB", 500.0)
            found[f"{kind}, rows that could not be read"] = row(skipped, "")
    return found


def _parquet(file: Path) -> Path | None:
    try:
        import pyarrow.csv as pc
        import pyarrow.parquet as pq
    except ImportError:
        return None
    target = file.with_suffix(".parquet")
    text = pc.ConvertOptions(column_types=dict.fromkeys(_COLUMNS, "string"))
    pq.write_table(pc.read_csv(file, convert_options=text), target)
    return target


def _read(file: Path) -> tuple[float, float, float, int, int]:
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(file)], capture_output=True, text=True, check=True, timeout=600
    )
    seconds, cpu, peak, read, skipped = json.loads(done.stdout)
    return seconds, cpu, peak, read, skipped


def main() -> int:
    """Returns 0 whether or not targets are met: `python -m bench` judges."""
    given = _rows.arguments(__doc__ or "")
    rows = measure(20_000 if given.quick else 1_000_000)
    _rows.publish(rows, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
