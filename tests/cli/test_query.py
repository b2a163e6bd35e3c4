"""`spikewatch query`: answers of a Prometheus API in the terminal."""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from sidecar.cli.chart import plot, sparkline
from sidecar.cli.values import moment


class Api:
    """A server that answers everything with `reply` and remembers what it was asked."""

    def __init__(self):
        self.asked, self.reply, self.status = [], {}, 200
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                url = urlsplit(self.path)
                self._answer(url.path, parse_qs(url.query))

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(self.path, parse_qs(body))

            def _answer(self, path, parameters):
                flat = {name: values[0] for name, values in parameters.items()}
                api.asked.append((self.command, path, flat, dict(self.headers)))
                body = api.reply if isinstance(api.reply, str) else json.dumps(api.reply)
                self.send_response(api.status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def gives(self, kind, result, **more):
        self.reply = {"status": "success", "data": {"resultType": kind, "result": result}, **more}

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def api():
    found = Api()
    yield found
    found.close()


def words(text):
    return [line.split() for line in text.splitlines()]


def test_an_instant_query_prints_a_table(spikewatch, api):
    api.gives(
        "vector",
        [
            {"metric": {"__name__": "up", "rank": 'a "b"'}, "value": [1.5, "1"]},
            {"metric": {}, "value": [1.5, "0.1"]},
            {"metric": {"__name__": "x"}, "value": [1.5, "NaN"]},
        ],
    )
    result = spikewatch("query", "up", "--url", api.url + "/", "--time", "1500.25")
    assert result.exit_code == 0
    assert words(result.stdout) == [
        ["series", "value"],
        ['up{rank="a', '\\"b\\""}', "1"],
        ["{}", "0.1"],
        ["x", "NaN"],
    ]
    ((method, path, parameters, _),) = api.asked
    assert (method, path) == ("GET", "/api/v1/query")
    assert parameters == {"query": "up", "time": "1500.250"}


def test_without_a_time_the_server_says_what_now_is(spikewatch, api):
    api.gives("scalar", [1.5, "2"])
    assert spikewatch("query", "2", "--url", api.url).stdout == "2\n"
    assert api.asked[0][2] == {"query": "2"}


def test_a_range_of_one_series_is_a_chart_with_gaps_where_nothing_was(spikewatch, api):
    points = [[100 + n, str(n)] for n in range(20) if n not in (9, 10, 11)]
    api.gives("matrix", [{"metric": {"__name__": "x"}, "values": points}])
    result = spikewatch("query", "x", "--url", api.url, "--start", "100", "--end", "119", "--step", "1s")
    lines = result.stdout.splitlines()
    assert lines[0] == "x"
    assert lines[1].startswith("19 ┤")
    assert lines[12].startswith(" 0 ┤")
    assert "1970-01-01 00:01:40Z to 1970-01-01 00:01:59Z" in lines[13]
    columns = [line.partition("┤")[2].ljust(10, chr(0x2800)) for line in lines[1:13]]
    assert [all(line[column] == chr(0x2800) for line in columns) for column in range(10)] == [
        column == 5 for column in range(10)
    ]
    assert api.asked[0][2] == {"query": "x", "start": "100.000", "end": "119.000", "step": "1.000"}


def test_a_range_of_several_series_is_a_line_of_bars_each(spikewatch, api):
    api.gives(
        "matrix",
        [{"metric": {"rank": str(rank)}, "values": [[n, str(n * rank)] for n in range(4)]} for rank in range(2)],
    )
    result = spikewatch("query", "x", "--url", api.url, "--start", "0", "--end", "3", "--step", "1s")
    assert words(result.stdout)[:3] == [
        ["series", "min", "max", "last"],
        ['{rank="0"}', "▄▄▄▄", "0", "0", "0"],
        ['{rank="1"}', "▁▃▆█", "0", "3", "3"],
    ]


def test_only_a_start_asks_until_now_in_120_steps(spikewatch, api):
    api.gives("matrix", [])
    before = time.time()
    assert spikewatch("query", "x", "--url", api.url, "--start", "now-2h").stdout == "no data\n"
    asked = api.asked[0][2]
    assert before - 1 <= float(asked["end"]) <= time.time()
    assert float(asked["end"]) - float(asked["start"]) == pytest.approx(7200, abs=0.1)
    assert float(asked["step"]) == 60


def test_json_is_the_answer_as_it_came(spikewatch, api):
    api.gives("vector", [{"metric": {"b": "1", "a": "2"}, "value": [1.0, "+Inf"], "extra": 1}])
    out = spikewatch("query", "x", "--url", api.url, "--json").stdout
    assert json.loads(out) == api.reply["data"]


def test_strings_warnings_and_headers_go_where_they_belong(spikewatch, api, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    api.gives("string", [1, "[bold]hello"], warnings=["slow"])
    arguments = ("--header", "X-Scope-OrgID: ml", "--token-file", tmp_path / "token")
    result = spikewatch("query", '"x"', "--url", api.url, *arguments)
    assert (result.stdout, result.stderr) == ("[bold]hello\n", "warning: slow\n")
    headers = {name.lower(): value for name, value in api.asked[0][3].items()}
    assert (headers["x-scope-orgid"], headers["authorization"]) == ("ml", "Bearer secret")


def test_a_long_expression_is_posted(spikewatch, api):
    api.gives("vector", [])
    expr = " + ".join(["up"] * 600)
    spikewatch("query", expr, "--url", api.url)
    assert api.asked[0][:3] == ("POST", "/api/v1/query", {"query": expr})


def test_what_the_server_refuses_is_said_with_the_expression(spikewatch, api):
    api.status, api.reply = 400, {"status": "error", "errorType": "bad_data", "error": "1:3: parse error: no"}
    result = spikewatch("query", "a b", "--url", api.url)
    assert (result.exit_code, result.stderr) == (1, "spikewatch: 1:3: parse error: no\n  a b\n")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("<html>hello</html>", "has no Prometheus API: HTTP 200 <html>hello</html>"),
        ({"status": "success"}, "cannot be read"),
        ({"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, "x"]}]}}, "cannot be read"),
        ({"status": "success", "data": {"resultType": "streams", "result": []}}, "cannot be read"),
    ],
)
def test_an_answer_that_is_none_is_told(spikewatch, api, reply, said):
    api.reply = reply
    result = spikewatch("query", "x", "--url", api.url)
    assert result.exit_code == 1
    assert said in result.stderr


def test_nobody_there_names_the_address(spikewatch):
    result = spikewatch("query", "x", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "no answer from http://127.0.0.1:9" in result.stderr


@pytest.mark.parametrize(
    "address",
    [
        "http://me:geheim@127.0.0.1:9",
        "http://me:ge@heim@127.0.0.1:9",
        "http://me:geheim#1@127.0.0.1:9",
        "http://me:12/geheim@127.0.0.1:9",
        "ftp://me:geheim@127.0.0.1",
        "me:geheim@127.0.0.1:9",
        "http://me:geheim@127.0.0.1:9x",
        "http://geheim@[::1",
    ],
)
def test_a_password_in_the_address_is_not_shown(spikewatch, address):
    for command in (["query", "x"], ["approvals"]):
        result = spikewatch(*command, "--url", address)
        assert result.exit_code == 1
        assert "heim" not in result.stderr + result.stdout
        assert "***@" in result.stderr


def test_a_password_in_the_address_is_sent(spikewatch, api):
    api.gives("scalar", [1, "2"])
    assert spikewatch("query", "2", "--url", api.url.replace("//", "//me:geheim@")).stdout == "2\n"
    (*_, headers) = api.asked[-1]
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:geheim").decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--time", "1", "--step", "1s"], "--time belongs to an instant query"),
        (["--start", "2", "--end", "1"], "ends before it starts"),
        (["--header", "nothing"], "write NAME: VALUE"),
    ],
)
def test_wrong_usage_says_what_is_right(spikewatch, arguments, said):
    result = spikewatch("query", "x", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


@pytest.mark.peers
def test_a_real_prometheus_is_asked_and_understood(spikewatch, prometheus_over, tmp_path):
    (tmp_path / "data.om").write_text(
        "".join(f'x{{rank="{r}"}} {r * n} {1_700_000_000 + n}\n' for r in (1, 2) for n in range(60)) + "# EOF\n"
    )
    with prometheus_over(tmp_path, tmp_path / "data.om") as url:
        instant = spikewatch("query", "sum(x)", "--url", url, "--time", "2023-11-14T22:13:30Z")
        assert words(instant.stdout) == [["series", "value"], ["{}", "30"]]
        over = spikewatch("query", "x", "--url", url, "--start", 1_700_000_000, "--end", 1_700_000_059, "--step", "1s")
        assert words(over.stdout)[2][-3:] == ["0", "118", "118"]
        refused = spikewatch("query", "rate(x[", "--url", url)
        assert refused.exit_code == 1
        assert "parse error" in refused.stderr


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", 10_000_000),
        ("now-1h", 6_400_000),
        ("-90s", 9_910_000),
        ("1700000000.5", 1_700_000_000_500),
        ("-1.5", -1500),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.25+01:00", 1_700_000_000_250),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_moment_can_be_written_in_several_ways(text, ms):
    assert moment(text, 10_000_000) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "now+1h", "now-x", "inf", "2023-13-01"])
def test_what_is_no_moment_is_refused(text):
    with pytest.raises(ValueError, match="not a time"):
        moment(text, 0)


def test_bars_leave_gaps_and_share_columns_by_their_mean():
    assert sparkline([0, None, float("nan"), float("inf"), 8], 10) == "▁   █"
    assert sparkline([0, 2, 7, 9], 2) == "▁█"
    assert sparkline([], 5) == ""
    assert sparkline([3, 3], 5) == "▄▄"


def test_a_plot_draws_a_line_from_low_to_high():
    lines = plot([0, 1], 10, 2)
    assert [line.split("┤")[0] for line in lines] == ["1 ", "0 "]
    assert len({len(line) for line in lines}) == 1
    assert plot([], 10, 2)[0].endswith("┤")
    assert plot([None, None], 10, 2)[0].split("┤")[1] == "⠀"
