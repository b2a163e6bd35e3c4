"""The price book and `spikewatch prices`: what is taken over from files and from AWS, and what is refused."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta

import pytest
from bills import COLUMNS, TODAY, charge
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sidecar.app.checking import check_files
from sidecar.cli import _spikewatch
from sidecar.collectors.cost import priceaws, pricecsv, pricefocus
from sidecar.collectors.cost.pricebook import CAPACITIES, SHIPPED, Price, PriceBook, load_prices, text
from sidecar.errors import CollectError, ConfigError
from sidecar.plugins import Registry

DAY = date(2026, 11, 20)
LINE = "- {instance_type: m5.xlarge, region: eu-west-1, usd_per_hour: 0.4, as_of: 2026-11-01}\n"
PRICES = st.builds(
    Price,
    instance_type=st.text(min_size=1, max_size=12),
    region=st.sampled_from(["", "us-east-1", "eu-west-1"]),
    capacity=st.sampled_from(CAPACITIES),
    usd_per_hour=st.floats(0, 1e6),
    as_of=st.dates(),
    source=st.text(max_size=12),
)


@pytest.fixture
def prices(tmp_path):
    """Runs `spikewatch prices`; the book is `book.yaml`. Gives back exit code, stdout and stderr."""

    def run(command, *args, book=None):
        file = tmp_path / "book.yaml"
        if book is not None:
            file.write_text(book)
        result = CliRunner().invoke(_spikewatch, ["prices", command, str(file), *map(str, args)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    run.file = tmp_path / "book.yaml"
    return run


def places(failed):
    return [(p.line, p.column) for p in failed.value.problems]


# --- the book ---


def test_the_shipped_book_has_no_price_and_says_how_to_write_one():
    assert load_prices(SHIPPED).prices == {}
    assert "usd_per_hour" in SHIPPED.read_text()


def test_a_regions_own_price_comes_before_the_one_for_any_region():
    book = PriceBook().with_(
        [
            Price(instance_type="a", usd_per_hour=1, as_of=DAY),
            Price(instance_type="a", region="eu", usd_per_hour=2, as_of=DAY),
        ]
    )
    found = [book.find("a", region, "on-demand") for region in ("eu", "us")]
    assert [price.usd_per_hour for price in found] == [2, 1]
    assert book.find("a", "eu", "spot") is None
    assert book.find("b", "eu", "on-demand") is None


@given(st.lists(PRICES, max_size=5))
def test_a_book_that_is_written_and_read_again_is_the_same(tmp_path_factory, listed):
    book = PriceBook().with_(listed)
    file = tmp_path_factory.mktemp("book") / "prices.yaml"
    file.write_text(text(book), encoding="utf-8")
    assert load_prices(file).prices == book.prices


@pytest.mark.parametrize(
    ("content", "place", "said"),
    [
        ("prices:\n" + LINE + LINE, (3, 19), "is there twice"),
        ("prices:\n- {instance_type: a, usd_per_hour: -1, as_of: 2026-11-01}\n", (2, 36), "must be at least 0"),
        ("prices:\n- {instance_type: a, usd_per_hour: .inf, as_of: 2026-11-01}\n", (2, 36), "finite"),
        ("prices:\n- {instance_type: a, usd_per_hour: 1, as_of: soon}\n", (2, 46), "date"),
        ("prices:\n- {instance_type: a, usd_per_hour: 1}\n", (2, 3), "as_of: is missing"),
        ("prices:\n- {instance_type: a, usd_per_hours: 1, as_of: 2026-11-01}\n", (2, 22), "did you mean usd_per_hour"),
        ("prices:\n- {instance_type: a, usd_per_hour: 1, as_of: 2026-11-01, capacity: Spot}\n", (2, 68), "'spot'"),
        ("price: []\n", (1, 1), "did you mean prices"),
        ("- a\n", (1, 1), "mapping"),
        ("prices: [\n", (2, 1), "YAML"),
    ],
)  # fmt: skip
def test_a_book_that_is_wrong_is_refused_with_line_and_column(tmp_path, content, place, said):
    file = tmp_path / "prices.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=said) as failed:
        load_prices(file)
    assert place in places(failed)


@pytest.mark.parametrize(
    ("capacity", "days", "old"), [("on-demand", 90, False), ("on-demand", 91, True), ("spot", 8, True)]
)
def test_a_price_is_old_after_as_long_as_its_kind_stays_right(capacity, days, old):
    price = Price(instance_type="a", capacity=capacity, usd_per_hour=1, as_of=DAY)
    assert price.old(DAY + timedelta(days=days)) is old


# --- CSV ---


def read_csv(tmp_path, content):
    file = tmp_path / "negotiated.csv"
    file.write_text(content, encoding="utf-8")
    return pricecsv.read(file, DAY)


def test_a_csv_file_may_have_its_columns_in_any_order_and_leave_out_what_has_a_default(tmp_path):
    found = read_csv(tmp_path, '\ufeffusd_per_hour,instance_type,region\n1.5,a,eu\n\n" 2 ","b",\n')
    given = {"as_of": DAY, "source": "negotiated.csv"}
    assert found == [
        Price(instance_type="a", region="eu", usd_per_hour=1.5, **given),
        Price(instance_type="b", usd_per_hour=2, **given),
    ]


@pytest.mark.parametrize(
    ("content", "place", "said"),
    [
        ("", (1, 1), "no list of prices"),
        ("instance_type,price\na,1\n", (1, 15), "no such column: 'price'"),
        ("instance_type,usd_per_hour,region,region\na,1,x,y\n", (1, 35), "is there twice"),
        ("instance_type,usd_per_hour\na,cheap\n", (2, 3), "usd_per_hour"),
        ('instance_type,usd_per_hour\n"a, b",-1\n', (2, 8), "usd_per_hour"),
        ("instance_type,usd_per_hour\na\n", (2, 1), "1 fields where the header has 2"),
        ("instance_type,usd_per_hour\na,1\n,2\n", (3, 1), "instance_type"),
        ("instance_type,usd_per_hour\na,1\na,2\n", (3, 1), "is there twice"),
        ('instance_type,usd_per_hour\n"a,1\n', (2, 1), "no CSV"),
        ("instance_type,usd_per_hour,as_of\na,1,2026-13-01\n", (2, 5), "as_of"),
    ],
)
def test_a_csv_file_that_is_wrong_is_refused_with_line_and_column(tmp_path, content, place, said):
    with pytest.raises(ConfigError, match=said) as failed:
        read_csv(tmp_path, content)
    assert place in places(failed)


@given(st.lists(st.text(alphabet='ab1.,"\n -', max_size=20), max_size=4))
def test_any_csv_file_gives_prices_or_a_list_of_mistakes(tmp_path_factory, lines):
    try:
        found = read_csv(tmp_path_factory.mktemp("csv"), "instance_type,usd_per_hour\n" + "\n".join(lines))
    except ConfigError as e:
        found = e.problems
    assert all(isinstance(one, Price) or (one.line and one.column) for one in found)


# --- FOCUS ---


def hours(day, price, number=24.0, kind="p5.48xlarge", **more):
    own = {
        "ListUnitPrice": price, "PricingQuantity": number, "PricingUnit": "Hrs", "RegionId": "us-east-1",
        "SkuMeter": f"BoxUsage:{kind}", "PricingCategory": "Standard",
    }  # fmt: skip
    return charge(day, number * 1.0, **(own | more))


@pytest.fixture
def focus(export):
    columns = (*COLUMNS, "ListUnitPrice", "PricingQuantity", "PricingUnit", "PricingCategory")
    return lambda rows, name="focus.csv": export(rows, name, columns)


def test_an_export_gives_the_list_price_of_its_newest_day_and_of_spot_what_was_paid(focus):
    old, new = TODAY - timedelta(days=9), TODAY - timedelta(days=2)
    rows = [hours(old, 99.0), hours(new, 55.0), hours(new, 70.0, number=1.0)]
    rows += [
        hours(new, 55.0, number=n, SkuMeter="SpotUsage:p5.48xlarge", EffectiveCost=usd)
        for n, usd in ((10, 200), (5, 190))
    ]
    rows.append(hours(new, 3.0, SkuMeter="x", SkuPriceDetails='{"InstanceType": "Standard_D4"}', RegionId="westeurope"))
    found = {price.key: price for price in pricefocus.read(str(focus(rows)))}
    assert {key: price.usd_per_hour for key, price in found.items()} == {
        ("p5.48xlarge", "us-east-1", "on-demand"): 55,
        ("p5.48xlarge", "us-east-1", "spot"): 26,
        ("Standard_D4", "westeurope", "on-demand"): 3,
    }
    assert {price.as_of for price in found.values()} == {new.date()}


def test_what_is_no_hour_of_an_instance_has_no_price(focus):
    rows = [
        hours(TODAY, 1.0, PricingUnit="GB"), hours(TODAY, 1.0, SkuMeter="EBS:VolumeUsage"), hours(TODAY, 0.0),
        hours(TODAY, 1.0, ChargeCategory="Tax"), hours(TODAY, 1.0, ChargeClass="Correction"),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="nothing to take over"):
        pricefocus.read(str(focus(rows)))


@pytest.mark.parametrize(
    ("wrong", "said"), [({"ListUnitPrice": "$5"}, "column ListUnitPrice"), ({"BillingCurrency": "EUR"}, "in USD")]
)
def test_a_row_that_is_wrong_is_told_with_its_line(focus, wrong, said):
    file = focus([hours(TODAY, 1.0), hours(TODAY, 1.0, **wrong)])
    with pytest.raises(ConfigError, match=said) as failed:
        pricefocus.read(str(file))
    assert places(failed) == [(3, 1)]
    csv, pq = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    strings = csv.ConvertOptions(column_types=dict.fromkeys(file.read_text().splitlines()[0].split(","), "string"))
    pq.write_table(csv.read_csv(file, convert_options=strings), file.with_suffix(".parquet"))
    with pytest.raises(ConfigError, match=f"row 2, {said}|row 2, .*{said}"):
        pricefocus.read(str(file.with_suffix(".parquet")))


# --- AWS ---


class Answers:
    """boto3's clients `pricing` and `ec2`, scripted in the shape AWS documents."""

    def __init__(self, listed=(55.04,), spot=()):
        self.asked, self._listed, self._spot = [], listed, spot

    def __call__(self, region):
        return lambda service: self

    def get_products(self, **asked):
        self.asked.append(asked)
        page = int(asked.get("NextToken", 0))
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{self._listed[page]:.10f}"}}
        upfront = {"unit": "Quantity", "pricePerUnit": {"USD": "1"}}
        term = {"priceDimensions": {"x": dimension, "y": upfront}}
        text = json.dumps({"product": {}, "terms": {"OnDemand": {"t": term}, "Reserved": {}}})
        return {"PriceList": [text]} | ({"NextToken": str(page + 1)} if page + 1 < len(self._listed) else {})

    def describe_spot_price_history(self, **asked):
        return {"SpotPriceHistory": list(self._spot)}


def spot(zone, hour, usd, kind="p5.48xlarge"):
    at = datetime(2026, 11, 19, hour, tzinfo=UTC)
    return {"InstanceType": kind, "AvailabilityZone": zone, "Timestamp": at, "SpotPrice": str(usd)}


def test_aws_is_asked_for_linux_on_shared_machines_and_for_the_newest_spot_price_of_each_zone():
    aws = Answers(spot=[spot("a", 1, 9.0), spot("a", 9, 20.0), spot("b", 3, 30.0)])
    found = {p.capacity: p for p in priceaws.read(["p5.48xlarge"], ["us-east-1"], aws, DAY)}
    assert {capacity: (p.usd_per_hour, p.as_of) for capacity, p in found.items()} == {
        "on-demand": (55.04, DAY),
        "spot": (25.0, DAY),
    }
    asked = {f["Field"]: f["Value"] for f in aws.asked[0]["Filters"]}
    assert (
        asked.items() >= {"instanceType": "p5.48xlarge", "regionCode": "us-east-1", "operatingSystem": "Linux"}.items()
    )


def test_a_price_list_with_two_prices_is_no_answer():
    with pytest.raises(CollectError, match="several prices: 55, 60"):
        priceaws.read(["p5.48xlarge"], ["us-east-1"], Answers(listed=(55.0, 60.0)), DAY)


def test_the_requests_are_ones_that_boto3_would_send():
    boto3 = pytest.importorskip("boto3")
    from botocore.stub import Stubber

    keys = {"region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    made = {service: boto3.client(service, **keys) for service in ("pricing", "ec2")}
    listed, answer = Stubber(made["pricing"]), Answers()
    listed.add_response("get_products", {"PriceList": answer.get_products()["PriceList"]})
    history = Stubber(made["ec2"])
    history.add_response("describe_spot_price_history", {"SpotPriceHistory": [spot("a", 1, 9.0)]})
    with listed, history:
        found = priceaws.read(["p5.48xlarge"], ["us-east-1"], lambda region: made.__getitem__, DAY)
    assert [price.usd_per_hour for price in found] == [55.04, 9.0]
    for client in made.values():
        client.close()


# --- the command ---


def test_a_refresh_makes_the_book_changes_it_and_leaves_other_prices_and_comments_alone(prices, tmp_path):
    csv = tmp_path / "negotiated.csv"
    csv.write_text("instance_type,region,usd_per_hour\nm5.xlarge,eu-west-1,0.3\n")
    made = prices("refresh", "--from", csv)
    assert (made.exit_code, made.stdout.splitlines()[0]) == (0, "m5.xlarge eu-west-1 on-demand: 0.3 USD/h (new)")
    assert prices.file.read_text().startswith("# What an hour of a node costs")
    other = "- {instance_type: dgx, usd_per_hour: 31, as_of: 2026-01-01, source: finance}\n"
    changed = prices("refresh", "--from", csv, book=f"# ours\nprices:\n{LINE}{other}")
    assert changed.stdout.splitlines() == [
        "m5.xlarge eu-west-1 on-demand: 0.4 -> 0.3 USD/h",
        "1 changed, 1 as they were",
    ]
    book = load_prices(prices.file)
    assert {key[0]: price.usd_per_hour for key, price in book.prices.items()} == {"m5.xlarge": 0.3, "dgx": 31}
    assert prices.file.read_text().startswith("# ours\n")


def test_comments_stay_with_the_price_they_are_about(prices, tmp_path):
    csv = tmp_path / "negotiated.csv"
    csv.write_text("instance_type,usd_per_hour\nm,2\n")
    book = (
        "# top\nprices:\n# contract 4711\n- {instance_type: m, usd_per_hour: 1, as_of: 2026-11-01}  # ask Ann\n"
        "- instance_type: a\n  usd_per_hour: 3\n  as_of: 2026-11-01 # block\n  # below\n"
        "- {instance_type: b, usd_per_hour: 1,\n   as_of: 2026-11-01, source: 'no # comment'}\n# end\n"
    )
    assert prices("refresh", "--from", csv, book=book).exit_code == 0
    once = prices.file.read_text()
    lines = once.splitlines()
    assert [line if line.startswith("#") else line[2:20] for line in lines if line != "prices:"] == [
        "# top", "{instance_type: a,", "# below", "{instance_type: b,", "# contract 4711", "{instance_type: m,", "# end"
    ]  # fmt: skip
    assert [line.partition("}")[2] for line in lines if line.startswith("- ")] == ["  # block", "", "  # ask Ann"]
    prices("refresh", "--from", csv)
    assert prices.file.read_text() == once


@pytest.mark.parametrize("book", ["# only\n", "prices: []\n# only\n"])
def test_comments_of_an_empty_book_stay(prices, tmp_path, book):
    csv = tmp_path / "negotiated.csv"
    csv.write_text("instance_type,usd_per_hour\nm,2\n")
    assert prices("refresh", "--from", csv, book=book).exit_code == 0
    assert "# only" in prices.file.read_text().splitlines()


def test_with_dry_run_or_a_mistake_nothing_is_written(prices, tmp_path):
    book = "prices:\n" + LINE
    csv = tmp_path / "new.csv"
    csv.write_text("instance_type,usd_per_hour\na,1\n")
    assert prices("refresh", "--from", csv, "--dry-run", book=book).exit_code == 0
    csv.write_text("instance_type,usd_per_hour\na,1\nb,x\n")
    wrong = prices("refresh", "--from", csv)
    assert wrong.exit_code == 1
    assert wrong.stderr.startswith(f"{csv}:3:3: error: usd_per_hour: ")
    assert prices("refresh", "--from", tmp_path / "none.csv").stderr.endswith(
        "cannot be read: No such file or directory\n"
    )
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in prices("refresh", "--from", tmp_path / "pipe").stderr
    assert prices.file.read_text() == book


def test_a_book_that_is_wrong_is_not_refreshed(prices, tmp_path):
    csv = tmp_path / "new.csv"
    csv.write_text("instance_type,usd_per_hour\na,1\n")
    wrong = prices("refresh", "--from", csv, book="prices:\n- {instance_type: a}\n")
    assert wrong.exit_code == 1
    assert f"{prices.file}:2:3: error: " in wrong.stderr


def test_without_a_name_the_book_is_prices_yaml(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text("instance_type,usd_per_hour\na,1\n")
    done = CliRunner().invoke(_spikewatch, ["prices", "refresh", "--from", "new.csv"])
    assert done.exit_code == 0
    assert list(load_prices(tmp_path / "prices.yaml").prices) == [("a", "", "on-demand")]


def test_an_export_is_known_by_its_header(prices, focus):
    done = prices("refresh", "--from", focus([hours(TODAY, 55.0)]))
    assert done.stdout.splitlines()[0] == "p5.48xlarge us-east-1 on-demand: 55 USD/h (new)"


def test_from_aws_takes_types_and_regions_from_the_book_and_the_options(prices, monkeypatch):
    aws = Answers()
    monkeypatch.setattr("sidecar.cli.prices.boto_clients", aws)
    assert prices("refresh", "--from", "aws").exit_code == 2
    done = prices(
        "refresh", "--from", "aws", "--region", "us-east-1", "--instance-type", "p5.48xlarge", book="prices:\n" + LINE
    )
    assert done.exit_code == 0
    asked = [{f["Field"]: f["Value"] for f in one["Filters"]} for one in aws.asked]
    assert {(one["instanceType"], one["regionCode"]) for one in asked} == {
        (kind, region) for kind in ("m5.xlarge", "p5.48xlarge") for region in ("eu-west-1", "us-east-1")
    }
    assert prices("refresh", "--from", "x.csv", "--region", "eu").exit_code == 2


def test_check_tells_books_and_approvals_from_configurations(tmp_path):
    content = {
        "book": "prices:\n" + LINE, "wrong": "prices: [{instance_type: a}]\n", "rules": "groups: []\n",
        "approvals": "approvals: [{budget: b, owner: cfo, amount: 1, until: 2026-12-31}]\n",
    }  # fmt: skip
    files = [tmp_path / f"{name}.yaml" for name in content]
    for file, text_ in zip(files, content.values(), strict=True):
        file.write_text(text_)
    report = check_files([*files, SHIPPED], Registry())
    said = dict(line.split(": ") for line in report.summary)
    assert said == {
        str(files[0]): "1 price",
        str(files[2]): "0 rules",
        str(files[3]): "1 approval",
        str(SHIPPED): "0 prices",
    }
    assert {(p.file, p.line, p.column) for p in report.problems} == {(str(files[1]), 1, 10)}


def test_show_lists_prices_with_their_age_and_marks_the_old(prices):
    shown = prices("show", book="prices:\n" + LINE.replace("2026-11-01", "2020-01-01"))
    assert shown.exit_code == 0
    assert "m5.xlarge" in shown.stdout
    assert "OLD" in shown.stdout
    assert prices("show", book="prices: {}\n").exit_code == 1
    assert "no prices" in prices("show", book="prices: []\n").stderr
