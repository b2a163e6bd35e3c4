"""`spikewatch parse` as a member of a pipeline."""

import subprocess
import sys


def test_a_reader_that_goes_away_is_no_fault_of_the_file(tmp_path):
    log = tmp_path / "nccl.log"
    log.write_text("h1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM\n" * 20_000)
    command = [sys.executable, "-m", "spikewatch", "parse", "nccl", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parsing:
        assert parsing.stdout.readline().startswith('{"kind": "channel"')
        parsing.stdout.close()
        assert parsing.stderr.read() == ""
