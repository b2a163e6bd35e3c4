"""Which URLs the egress list lets through, and what does not get past it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.actuators.egress import EgressList

LIST = EgressList(["https://ops.example.com/hooks/", "http://10.0.0.7:8080", "https://v6.example.com/a"])


@pytest.mark.parametrize(
    "url",
    [
        "https://ops.example.com/hooks/store",
        "https://ops.example.com/hooks",
        "https://OPS.example.com:443/hooks/a/b?x=1#y",
        "http://10.0.0.7:8080",
        "http://10.0.0.7:8080/anything/at/all",
        "https://v6.example.com/a/b",
    ],
)
def test_what_lies_under_a_prefix_is_allowed(url):
    assert LIST.allows(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://ops.example.com/hooks/store",  # another scheme
        "https://ops.example.com:8443/hooks/store",  # another port
        "https://ops.example.com.evil.example/hooks/store",
        "https://evil.example/https://ops.example.com/hooks/",
        "https://ops.example.com@evil.example/hooks/",
        "https://u:p@ops.example.com/hooks/",
        "https://ops.example.com/hooksandmore",  # half a segment
        "https://ops.example.com/hooks/../admin",
        "https://ops.example.com/hooks/%2e%2e/admin",
        "https://ops.example.com/hooks/%252e%252e/admin",
        "https://ops.example.com/hooks/..%2fadmin",
        "https://ops.example.com/hooks/.%2e/admin",
        "https://ops.example.com\\@evil.example/hooks/",
        "https://ops.example.com/hooks//../../x",
        "https://ops.example.com/hooks/a b",
        "https://ops.example.com/hooks/a\n",
        "https://v6.example.com/",
        "http://10.0.0.7:8081/",
        "file:///etc/passwd",
        "http://[::1",
        "https://ops.example.com:99999/hooks/",
        "",
    ],
)
def test_what_does_not_is_refused_and_so_is_what_servers_read_in_two_ways(url):
    assert not LIST.allows(url)


def test_an_empty_list_allows_nothing():
    assert not EgressList([])
    assert not EgressList([]).allows("https://ops.example.com/hooks/")


@given(st.text(max_size=40))
def test_no_text_behind_another_host_gets_through(tail):
    assert not LIST.allows("https://evil.example/" + tail)
