"""Sums over processes that are kept up from reading to reading are those of a count from the beginning."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.collectors.commands import OTHER, Commands, Usage
from sidecar.collectors.procfs import Process

ME = 1
pids = st.integers(1, 5)


def process(pid, command="python", state="S", parent=1, cpu_ticks=0, threads=1, start_ticks=0, rss_pages=10):
    return Process(pid, command, state, parent, cpu_ticks, threads, start_ticks, rss_pages, kernel=False)


def change(draw, known):
    """Something that happens to a process; None: it is gone."""
    return {
        "works": lambda: {
            "cpu_ticks": known.cpu_ticks + draw(st.integers(1, 9)),
            "rss_pages": draw(st.integers(0, 50)),
        },
        "counts backwards": lambda: {"cpu_ticks": 0},
        "starts a thread": lambda: {"threads": known.threads + 1},
        "is renamed": lambda: {"command": draw(st.sampled_from(["python", "sleep", "worker"]))},
        "is adopted": lambda: {"parent": draw(pids)},
        "is another one": lambda: {"start_ticks": known.start_ticks + 1, "cpu_ticks": draw(st.integers(0, 3))},
        "becomes a zombie": lambda: {"state": "Z"},
        "does nothing": dict,
        "is gone": lambda: None if known.pid != ME else {},
    }[draw(st.sampled_from(HAPPENS))]()


HAPPENS = (
    *("works", "counts backwards", "starts a thread", "is renamed", "is adopted", "is another one"),
    *("becomes a zombie", "does nothing", "is gone"),
)


@st.composite
def readings(draw):
    """A few processes, to one of which something happens before each reading."""
    present = {ME: process(ME, parent=0)}
    found = []
    for _ in range(draw(st.integers(1, 12))):
        pid = draw(pids)
        known = present.get(pid)
        if known is None:
            present[pid] = process(pid, draw(st.sampled_from(["python", "sleep"])), parent=draw(pids))
        elif (changed := change(draw, known)) is None:
            del present[pid]
        elif changed:
            present[pid] = known._replace(**changed)
        found.append(list(present.values()))
    return found


def plain(processes):
    """(role, command) → what its processes that are alive add up to, by the definition."""
    own, before = {ME}, None
    while own != before:
        before, own = own, own | {p.pid for p in processes if p.parent in own}
    found = {}
    for p in processes:
        usage = found.setdefault(("sidecar" if p.pid in own else "pod", p.command), Usage(fds=0))
        if p.state != "Z":
            usage.processes += 1
            usage.threads += p.threads
            usage.rss_pages += p.rss_pages
    return found


@given(readings())
def test_sums_that_are_kept_up_are_those_counted_from_the_beginning(tmp_path_factory, history):
    commands = Commands(tmp_path_factory.getbasetemp(), max_commands=32)
    spent, seen = 0, {}
    for number, processes in enumerate(history):
        usages = commands.update(processes, ME, number)
        expected = plain(processes)
        for key, usage in usages.items():
            wanted = expected.get(key, Usage(fds=0))
            assert (usage.processes, usage.threads, usage.rss_pages, usage.fds) == (
                wanted.processes, wanted.threads, wanted.rss_pages, 0,
            )  # fmt: skip
        assert expected.keys() <= usages.keys()
        now = {(p.pid, p.start_ticks): p.cpu_ticks for p in processes}
        spent += sum(max(ticks - seen.get(who, 0), 0) for who, ticks in now.items())
        seen = now
        assert sum(usage.cpu_ticks for usage in usages.values()) == spent  # whose it was may change, what it was not


def test_beyond_the_limit_what_works_is_added_to_the_rest(tmp_path):
    commands = Commands(tmp_path, max_commands=1)
    first = [process(1, "a", parent=0), process(2, "b"), process(3, "c")]
    commands.update(first, ME, 0)
    usages = commands.update([first[0], first[1]._replace(cpu_ticks=7), first[2]._replace(threads=4)], ME, 1)
    assert usages["sidecar", "a"].cpu_ticks == 0
    other = usages["sidecar", OTHER]
    assert (other.processes, other.cpu_ticks, other.threads) == (2, 7, 5)
