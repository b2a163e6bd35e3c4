"""FOCUS exports are read strictly: nothing is guessed, and what cannot be read is told with its place and left."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from bills import COLUMNS, EGRESS, READS, TODAY, charge
from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.cost.focus import NEEDED, FocusFile, matching
from sidecar.collectors.cost.meters import category
from sidecar.collectors.cost.rows import Category, CostRow, RowProblem
from sidecar.errors import CollectError


def read(path):
    return list(FocusFile(str(path)).rows())


def test_a_charge_is_read_with_its_money_time_and_meter(export):
    (row,) = read(export([charge(TODAY, 12.5, ResourceId="i-1", RegionId="us-east-1", SubAccountId="42")]))
    assert row == CostRow(
        source="focus", resource="i-1", category=Category.VCPU, meter="BoxUsage:p5.48xlarge", start=TODAY,
        end=datetime(2026, 11, 21, tzinfo=UTC), effective=12.5, billed=12.5, currency="USD", quantity=24.0,
        unit="Hours", account="42", region="us-east-1",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["focus.csv", "focus.csv.gz"])
def test_plain_and_compressed_text_are_read(export, name):
    assert len(read(export([charge(TODAY, 1.0)] * 3, name))) == 3


def test_parquet_is_read_with_times_and_numbers_of_its_own(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    row = charge(TODAY, 3.0) | {"BilledCost": 2.0, "EffectiveCost": 3.0, "ConsumedQuantity": 24.0, "SkuMeter": None}
    row |= {"ChargePeriodStart": TODAY, "ChargePeriodEnd": TODAY.replace(day=21), "SkuPriceDetails": '{"CoreCount": 8}'}
    path = tmp_path / "focus.parquet"
    pq.write_table(pa.Table.from_pylist([row, row | {"EffectiveCost": None}]), path)
    first, second = read(path)
    assert (first.billed, first.effective, first.start, first.meter) == (2.0, 3.0, TODAY, "")
    assert first.vcpu_hours == 8 * 24
    assert str(second).endswith("row 2, column EffectiveCost: empty, where a number has to be")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-20 22:00:00", datetime(2026, 11, 20, 22, tzinfo=UTC)),
        ("2026-11-20T22:00:00Z", datetime(2026, 11, 20, 22, tzinfo=UTC)),
        ("2026-11-20T22:00:00+02:00", datetime(2026, 11, 20, 20, tzinfo=UTC)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
    ],
)
def test_times_without_a_zone_are_utc(export, text, wanted):
    (row,) = read(export([charge(TODAY, 1.0) | {"ChargePeriodStart": text, "ChargePeriodEnd": "2026-12-01"}]))
    assert row.start == wanted


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("BilledCost", "$10,000.00 ", "'$10,000.00 ' is no plain number"),
        ("EffectiveCost", "NULL", "empty, where a number has to be"),
        ("EffectiveCost", "1,5", "is no plain number"),
        ("EffectiveCost", "nan", "is no plain number"),
        ("ChargePeriodStart", "5/1/25", "is no ISO 8601 time"),
        ("ChargePeriodStart", "NULL", "empty, where a time has to be"),
        ("ChargePeriodEnd", "2020-01-01", "the period ends before it begins"),
        ("ConsumedQuantity", "many", "is no plain number"),
    ],
)
def test_a_value_that_cannot_be_read_costs_its_row_and_is_told_with_its_place(export, column, value, says):
    good = charge(TODAY, 1.0)
    path = export([good, good | {column: value}, good])
    first, problem, last = read(path)
    assert isinstance(first, CostRow)
    assert isinstance(last, CostRow)
    assert str(problem).startswith(f"{path}: row 2, column {column}: ")
    assert says in problem.problem


def test_a_line_of_another_width_is_told_and_left(export):
    path = export([charge(TODAY, 1.0)])
    path.write_text(path.read_text() + "1,2,3\n\n")
    row, problem = read(path)
    assert isinstance(row, CostRow)
    assert problem == RowProblem(str(path), 2, "", f"3 fields where the header has {len(COLUMNS)}")


@pytest.mark.parametrize("column", NEEDED)
def test_a_file_without_a_needed_column_is_no_focus_export(export, column):
    path = export([charge(TODAY, 1.0)], columns=[c for c in COLUMNS if c != column])
    with pytest.raises(CollectError, match=f"it lacks {column}"):
        read(path)


def test_columns_of_later_versions_may_be_missing(export):
    columns = [c for c in COLUMNS if c not in ("SkuMeter", "SkuPriceDetails", "ChargeClass", "Tags")]
    (row,) = read(export([charge(TODAY, 1.0, ChargeDescription="vCPU running")], columns=columns))
    assert row.category is Category.VCPU


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"a,b\n1,2\n"])
def test_what_is_no_export_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(CollectError, match=r"x\.csv"):
        read(path)


def test_a_file_that_is_missing_or_broken_off_is_an_error(tmp_path, export):
    with pytest.raises(CollectError, match="No such file"):
        read(tmp_path / "none.csv")
    whole = export([charge(TODAY, 1.0)] * 500, "focus.csv.gz")
    whole.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(CollectError):
        read(whole)


@given(st.text(alphabet='0123456789.,$-+eE "\nNUL', max_size=12))
def test_no_value_of_a_cost_makes_the_reader_fail(value):
    import csv
    import io

    text = io.StringIO()
    out = csv.DictWriter(text, COLUMNS)
    out.writeheader()
    out.writerow(charge(TODAY, 1.0) | {"EffectiveCost": value})
    found = list(FocusFile("x.csv", lambda path: io.BytesIO(text.getvalue().encode())).rows())
    assert len(found) == 1


@pytest.mark.parametrize(
    ("meter", "unit", "description", "service", "wanted"),
    [
        ("USE1-DataTransfer-Out-Bytes", "GB", "", "Compute", Category.EGRESS),
        ("USE1-EUC1-AWS-Out-Bytes", "GB", "", "Networking", Category.EGRESS),
        ("DataTransfer-Regional-Bytes", "GB", "", "Compute", Category.EGRESS),
        ("USE1-DataTransfer-In-Bytes", "GB", "", "Networking", Category.OTHER),
        ("", "GB", "Network Internet Egress from Americas to EMEA", "Compute", Category.EGRESS),
        ("EBS:VolumeP-IOPS.io2", "IOPS-Mo", "", "Storage", Category.PROVISIONED_IOPS),
        ("", "IOPS-Months", "", "Storage", Category.PROVISIONED_IOPS),
        ("Requests-Tier2", "Requests", "", "Storage", Category.REQUESTS),
        ("", "hour", "Nvidia H100 80GB GPU running in Iowa", "Compute", Category.GPU),
        ("BoxUsage:m5.large", "Hrs", "", "Compute", Category.VCPU),
        ("", "vCPU-Hours", "", "", Category.VCPU),
        ("TimedStorage-ByteHrs", "GB-Mo", "", "Storage", Category.STORAGE),
        ("", "", "", "Compute", Category.VCPU),
        ("", "", "", "Support", Category.OTHER),
    ],
)
def test_meters_decide_what_a_charge_is_for_whatever_the_service_category(meter, unit, description, service, wanted):
    assert category(meter, unit, description, service) is wanted


def test_shared_rows_of_the_tests_are_what_they_say(export):
    found = read(export([charge(TODAY, 1.0, **EGRESS), charge(TODAY, 1.0, **READS)]))
    assert [row.category for row in found] == [Category.EGRESS, Category.REQUESTS]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("BilledCost", "1e999"),
        ("ChargePeriodStart", "0001-01-01T00:00:00+10:00"),
        ("ChargePeriodEnd", "9999-12-31T23:59:59-10:00"),
        ("BillingCurrency", ""),
    ],
)
def test_a_value_beyond_all_bounds_or_a_missing_currency_costs_its_row_only(export, column, value):
    first, second = read(export([charge(TODAY, 1.0) | {column: value}, charge(TODAY, 2.0)]))
    assert (first.row, first.column) == (1, column)
    assert second.billed == 2.0


@pytest.mark.parametrize("place", [0.3, 0.6])
def test_a_compressed_export_that_is_damaged_is_told_with_its_name(export, place):
    path = export([charge(TODAY, n / 7) for n in range(500)], "focus.csv.gz")
    content = bytearray(path.read_bytes())
    at = int(len(content) * place)
    content[at : at + 40] = b"\xff" * 40
    path.write_bytes(content)
    with pytest.raises(CollectError, match=r"focus\.csv\.gz: "):
        read(path)


def table(tmp_path, **columns):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    whole = {
        "BilledCost": [1.0], "EffectiveCost": [1.0], "BillingCurrency": ["USD"], "ChargePeriodStart": [TODAY],
        "ChargePeriodEnd": [TODAY], "ChargeCategory": ["Usage"],
    }  # fmt: skip
    path = tmp_path / "focus.parquet"
    pq.write_table(pa.table(whole | {name: make(pa) for name, make in columns.items()}), path)
    return path


@pytest.mark.parametrize(
    ("column", "make"),
    [
        ("BilledCost", lambda pa: pa.array([[1.0]])),
        ("BilledCost", lambda pa: pa.array([b"1"])),
        ("BilledCost", lambda pa: pa.array([float("nan")])),
        ("BilledCost", lambda pa: pa.array([True])),
        ("ChargePeriodStart", lambda pa: pa.array([TODAY.date()])),
        ("ChargePeriodStart", lambda pa: pa.array([[TODAY]])),
    ],
)
def test_a_parquet_column_of_a_wrong_type_costs_its_rows_with_the_column_named(tmp_path, column, make):
    (problem,) = read(table(tmp_path, **{column: make}))
    assert isinstance(problem, RowProblem)
    assert problem.column == column
    assert "empty" not in problem.problem


def test_parquet_times_to_the_nanosecond_and_maps_of_decimals_are_read(tmp_path):
    nanos = int(TODAY.timestamp()) * 10**9 + 1

    def details(pa):
        return pa.array([[("CoreCount", Decimal(4))]], pa.map_(pa.string(), pa.decimal128(10, 2)))

    times = dict.fromkeys(
        ("ChargePeriodStart", "ChargePeriodEnd"), lambda pa: pa.array([nanos], pa.timestamp("ns", tz="UTC"))
    )
    (row,) = read(table(tmp_path, SkuPriceDetails=details, **times))
    assert row.start == TODAY


def test_parquet_that_is_damaged_or_has_times_beyond_the_calendar_is_told_with_its_name(tmp_path):
    path = table(tmp_path, ChargePeriodStart=lambda pa: pa.array([9 * 10**18], pa.timestamp("us")))
    with pytest.raises(CollectError, match=r"focus\.parquet: "):
        read(path)
    content = bytearray(table(tmp_path).read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(CollectError, match=r"focus\.parquet: "):
        read(path)


@pytest.mark.parametrize("lines", ['1,"2\n', '"1"2,3\n'], ids=["a quote that does not close", "text after a quote"])
def test_broken_quotes_make_a_file_unreadable_rather_than_swallow_rows(export, lines):
    path = export([charge(TODAY, 1.0)] * 3)
    head, first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([head, first, lines, *rest]))
    with pytest.raises(CollectError, match=r"focus\.csv: line \d+: no CSV"):
        read(path)


def test_a_column_that_is_there_twice_is_told_and_one_that_nobody_wants_may_be(export, tmp_path):
    path = export([charge(TODAY, 1.0)])
    text = path.read_text()
    path.write_text(text.replace("Tags", "BilledCost", 1))
    with pytest.raises(CollectError, match="column BilledCost is there twice"):
        read(path)
    path.write_text(text.replace("Tags", "x_Own", 1).replace("\r\n", ",x_Own\r\n", 1).replace("NULL\r\n", "NULL,1\r\n"))
    assert len(read(path)) == 1


def test_parquet_times_of_another_zone_are_utc_and_maps_and_spaced_names_are_read(tmp_path):
    late = TODAY.replace(hour=23)

    def details(pa):
        return pa.array([[("CoreCount", "4")]], pa.map_(pa.string(), pa.string()))

    def times(pa):
        return pa.array([late], pa.timestamp("us", tz="Asia/Tokyo"))

    columns = {"ChargePeriodStart": times, "ChargePeriodEnd": times, " SkuPriceDetails": details}
    columns |= {"ConsumedUnit": lambda pa: pa.array(["Hours"]), "ConsumedQuantity": lambda pa: pa.array([2])}
    (row,) = read(table(tmp_path, **columns))
    assert (row.start, row.day, row.vcpu_hours) == (late, TODAY.date(), 8)


@pytest.mark.parametrize("kind", ["decimal128", "int64", "large_string", "dictionary", "string"])
def test_parquet_money_may_be_of_any_physical_type(tmp_path, kind):
    def money(pa):
        return {
            "decimal128": lambda: pa.array([Decimal("12.000000000000000001")], pa.decimal128(38, 18)),
            "int64": lambda: pa.array([12]),
            "large_string": lambda: pa.array(["12"], pa.large_string()),
            "dictionary": lambda: pa.array(["12"]).dictionary_encode(),
            "string": lambda: pa.array(["12"]),
        }[kind]()

    (row,) = read(table(tmp_path, BilledCost=money))
    assert row.billed == pytest.approx(12)


def test_a_pattern_of_files_elsewhere_is_expanded_at_each_reading(tmp_path):
    pytest.importorskip("fsspec")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "latest.csv").touch()
    pattern = f"file://{tmp_path}/*/latest.csv"
    assert matching(pattern) == [f"file://{tmp_path}/a/latest.csv"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "latest.csv").touch()
    assert len(matching(pattern)) == 2
    assert matching("https://billing/focus.csv?sign=1") == ["https://billing/focus.csv?sign=1"]
    with pytest.raises(CollectError, match="nosuch"):
        matching("nosuch://bucket/*.csv")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "focus.csv")
    with pytest.raises(CollectError, match="not a regular file"):
        read(tmp_path / "focus.csv")


def test_an_address_of_an_unknown_kind_is_told():
    pytest.importorskip("fsspec")
    with pytest.raises(CollectError, match="nosuch://bucket/focus.csv: "):
        read("nosuch://bucket/focus.csv")
