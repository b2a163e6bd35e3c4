"""Templates without asking anybody: the fast path equals the full engine, and errors are told where they are."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.alerting.gotemplates import GoTemplates
from sidecar.alerting.gotext import four_digits, humanize_duration, shortest, to_float
from sidecar.alerting.templates import Scope, Surroundings, Template, TemplateParser
from sidecar.errors import TemplateError

LABELS = (("__name__", "up"), ("job", "trainer"), ("n", "12.5"), ("rank", "3"))
AROUND = Surroundings((("cluster", "c1"),), "http://here/x")

engine = GoTemplates()


def scope(value=1.0, labels=LABELS, query=None):
    return Scope(labels, value, AROUND, query)


def no_engine(source):
    raise AssertionError(f"the full engine was asked for {source!r}")


atoms = st.sampled_from(
    ["$value", "$labels.rank", "$labels.n", "$labels.nope", ".Labels.job", "$externalLabels.cluster"]
)
functions = st.sampled_from(["humanize", "humanize1024", "humanizeDuration", "humanizePercentage", "humanizeTimestamp"])
verbs = st.sampled_from(["%.2f", "%f", "%.0f", "%g", "%.3g", "%e", "%v", "%s", "%.1f%%", "a %.2f b"])
actions = st.one_of(
    atoms.map(lambda a: f"{{{{ {a} }}}}"),
    st.builds(lambda a, f: f"{{{{ {a} | {f} }}}}", atoms, functions),
    st.builds(lambda a, f: f"{{{{{f} {a}}}}}", atoms, functions),
    st.builds(lambda a, v: f'{{{{ printf "{v}" {a} }}}}', atoms.filter(lambda a: a == "$value"), verbs),
    st.builds(lambda a, v: f'{{{{ {a} | printf "{v}" }}}}', atoms.filter(lambda a: a == "$value"), verbs),
    st.builds(lambda f: f"{{{{ $value | {f} | toUpper }}}}", functions),
    st.just("{{ $labels }}"),
    st.just("{{ $externalURL }}"),
    st.text('ab{} %|"\n.$', max_size=6).filter(lambda t: "{{" not in t and not t.endswith("{")),
)
values = st.floats(allow_nan=True) | st.floats(-1e6, 1e6) | st.integers(-100_000, 100_000).map(float)


@settings(max_examples=400, deadline=None)
@given(st.lists(actions, max_size=4).map("".join), values)
def test_the_fast_path_writes_what_the_full_engine_writes(source, value):
    fast = TemplateParser(no_engine).parse(source)
    full = Template(source, (engine.parse(source),))
    assert _outcome(fast, value) == _outcome(full, value)


def _outcome(template, value):
    try:
        return template.render(scope(value))
    except TemplateError:
        return TemplateError


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_shortest_text_of_a_float_reads_back_equal(value):
    assert float(shortest(value)) == value
    assert float(f"{value:.4g}") == float(four_digits(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (100000.0, "100000"),
        (1e6, "1e+06"),
        (123456789.0, "1.23456789e+08"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (12.5, "12.5"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
        (5e-324, "5e-324"),
    ],
)
def test_floats_are_written_as_go_writes_them(value, text):
    assert shortest(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.001, "1ms"),
        (59.9999, "60s"),
        (-75, "-1m 15s"),
        (90061, "1d 1h 1m 1s"),
        (1e20, "-106751991167300d -15h -30m -8s"),
    ],
)
def test_durations_are_written_as_prometheus_writes_them(seconds, text):
    assert humanize_duration(seconds) == text


@pytest.mark.parametrize("text", ["", "abc", " 1", "1 ", "0x10", "1e", "--1", "1e400", "_"])
def test_what_go_does_not_read_as_a_number_is_refused(text):
    with pytest.raises(TemplateError):
        to_float(text)


def test_a_boolean_is_no_number():
    with pytest.raises(TemplateError, match="cannot convert bool"):
        to_float(True)


@pytest.mark.parametrize(
    ("source", "offset"),
    [
        ("{{ nope }}", 3),
        ("ab {{ $labels.x | nope }}", 18),
        ("{{ $nope }}", 3),
        ("é {{ nope }}", 5),
    ],
)
def test_a_template_error_says_where_it_is(source, offset):
    with pytest.raises(TemplateError) as caught:
        TemplateParser().parse(source)
    assert abs(caught.value.offset - offset) <= 2


@pytest.mark.parametrize(
    "source", ["{{", "{{ $labels.x", "{{ end }}", "{{ if }}x{{ end }}", "{{ | }}", "{{ }}", "{{ 1 | 2 }}"]
)
def test_a_broken_template_is_refused(source):
    with pytest.raises(TemplateError):
        TemplateParser().parse(source)


def test_a_template_that_fails_gives_its_error_as_text():
    template = TemplateParser().parse("{{ $labels.job | humanize }}")
    assert template.expand(scope()) == '<error expanding template: parsing "trainer": invalid syntax>'


def test_text_without_actions_is_no_template_and_needs_no_scope():
    parser = TemplateParser(no_engine)
    assert parser.parse("100% }} sure").text == "100% }} sure"
    assert parser.parse("").text == ""
    assert parser.parse("{{ $value }}").text is None
    assert Template.plain("{{ nope }}").render(scope()) == "{{ nope }}"


def test_query_is_asked_at_the_time_bound_to_the_expansion():
    asked = []

    def query(expr):
        asked.append(expr)
        return [((("job", "x"),), 2.0)]

    template = TemplateParser().parse('{{ range query "up{job=\\"a\\"}" }}{{ .Labels.job }} {{ .Value }}{{ end }}')
    assert template.expand(scope(query=query)) == "x 2"
    assert asked == ['up{job="a"}']


def test_without_a_query_function_the_template_says_so():
    assert "query is not available" in TemplateParser().parse('{{ query "up" | first | value }}').expand(scope())


@pytest.mark.parametrize(
    "source", ["{{ $labels.job.upper }}", "{{ $value.real }}", "{{ .Labels.job.Format }}", "{{ .items }}"]
)
def test_python_objects_cannot_be_reached_from_a_template(source):
    assert TemplateParser().parse(source).expand(scope()).startswith("<error expanding template: ")


def test_a_template_that_would_run_for_ever_is_cut_off():
    recursive = '{{ define "t" }}{{ template "t" }}{{ end }}{{ template "t" }}'
    assert "error expanding template" in TemplateParser().parse(recursive).expand(scope())
    huge = '{{ range query "x" }}' + "y" * 1000 + "{{ end }}"
    many = [((("n", str(n)),), 1.0) for n in range(2000)]
    assert "error expanding template" in TemplateParser().parse(huge).expand(scope(query=lambda expr: many))


def test_templates_are_equal_by_their_source():
    parse = TemplateParser().parse
    assert parse("{{ $value }}") == parse("{{ $value }}")
    assert parse("{{ $value }}") != parse("{{ $value}}")
    assert len({parse("a"), parse("a"), parse("b")}) == 2
