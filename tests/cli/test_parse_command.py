"""`spikewatch parse` as a member of a pipeline."""

import subprocess
import sys

import pytest


def test_a_reader_that_goes_away_is_no_fault_of_the_file(tmp_path):
    log = tmp_path / "nccl.log"
    log.write_text("h1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM\n" * 20_000)
    command = [sys.executable, "-m", "spikewatch", "parse", "nccl", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parsing:
        assert parsing.stdout.readline().startswith('{"kind": "channel"')
        parsing.stdout.close()
        assert parsing.stderr.read() == ""


@pytest.mark.parametrize("what", ["nccl", "ras", "inspector"])
@pytest.mark.parametrize("content", [b"", b"epoch 3, loss 0.2\n", b"\xff\x00\x80"])
def test_a_file_that_says_nothing_is_said_to(spikewatch, tmp_path, what, content):
    (tmp_path / "log").write_bytes(content)
    result = spikewatch("parse", what, tmp_path / "log")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"{tmp_path}/log: nothing of kind {what} is in it\n"
