"""Where the sidecar listens, and what it refuses to listen on."""

import asyncio
import os
import socket
import stat

import pytest

from sidecar.errors import ChannelError
from sidecar.trainer.channel import CHECK_LISTENER_MS, TrainerChannel
from sidecar.trainer.listener import Listener


@pytest.fixture
def listen():
    made = []

    def make(path, others=False):
        made.append(Listener(path, others=others))
        return made[-1]

    yield make
    for one in made:
        one.close()


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_it_makes_a_folder_and_a_socket_for_its_own_user_only(listen, tmp_path):
    path = tmp_path / "run" / "trainer.sock"
    listen(path)
    assert (mode(path.parent), mode(path)) == (0o700, 0o600)


def test_where_other_users_are_allowed_those_of_the_folders_group_get_in(listen, tmp_path):
    path = tmp_path / "run" / "trainer.sock"
    listen(path, others=True)
    assert (mode(path.parent), mode(path)) == (0o750, 0o660)


def test_a_path_longer_than_the_kernel_takes_is_refused_saying_so(listen, tmp_path):
    path = tmp_path / ("x" * 120)
    with pytest.raises(ChannelError, match=r"holds 107: set a shorter run_dir"):
        listen(path)
    assert not path.exists()


def test_what_a_killed_sidecar_left_behind_is_replaced(listen, tmp_path):
    path = tmp_path / "s"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(path))
    dead.close()
    listen(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trainer:
        trainer.connect(str(path))


def test_a_second_sidecar_on_the_same_path_is_refused(listen, tmp_path):
    listen(tmp_path / "s")
    with pytest.raises(ChannelError, match="another sidecar listens"):
        listen(tmp_path / "s")


def test_a_file_in_the_way_is_not_removed(listen, tmp_path):
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(ChannelError, match="not a socket: move it away"):
        listen(path)
    assert path.read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_reported(listen, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ChannelError, match="cannot listen on"):
        listen(tmp_path / "file" / "s")


def test_closing_removes_the_path_unless_it_is_somebody_elses_by_now(listen, tmp_path):
    one = listen(tmp_path / "one")
    one.close()
    assert not (tmp_path / "one").exists()
    two = listen(tmp_path / "two")
    (tmp_path / "two").unlink()
    (tmp_path / "two").write_text("another's")
    two.close()
    assert (tmp_path / "two").exists()


def test_a_path_that_was_removed_is_listened_on_again_and_attached_trainers_stay(
    channel, trainers, clock, sink, tmp_path
):
    async def story():
        async with channel() as sidecar:
            old = await trainers(rank=0)
            (tmp_path / "run" / "trainer.sock").unlink()
            (tmp_path / "run").rmdir()
            sidecar.tick(clock.advance(CHECK_LISTENER_MS))
            await trainers(rank=1)
            old.step(steps_total=3)
            sidecar.tick(clock.advance(1_000))
            assert sidecar.identity().ranks == (0, 1)
            assert sink.value("steps_total", rank="0") == 3

    asyncio.run(story())


def test_a_path_that_cannot_be_taken_back_is_tried_again_and_the_status_says_so(channel, clock, tmp_path, soon):
    async def story():
        async with channel() as sidecar:
            path = tmp_path / "run" / "trainer.sock"
            path.unlink()
            path.write_text("in the way")
            sidecar.tick(clock.advance(CHECK_LISTENER_MS))
            assert sidecar.status().reason == "not_listening"
            path.unlink()
            sidecar.tick(clock.advance(CHECK_LISTENER_MS))
            assert sidecar.status().reason == "no_trainer"

    asyncio.run(story())


def test_starting_on_a_path_that_cannot_be_used_raises(sink, clock, tmp_path):
    async def story():
        with pytest.raises(ChannelError):
            TrainerChannel(tmp_path / ("x" * 120), sink, clock).start()

    asyncio.run(story())
