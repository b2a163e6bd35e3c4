"""What the pages about responses and plugins show together holds: the test of a response, played as it is printed."""

import re
import shutil
from pathlib import Path

from click.testing import CliRunner

from sidecar.cli import _spikewatch

ROOT = Path(__file__).parents[2]


def blocks(page):
    return re.findall(r"```yaml\n(.+?)```", (ROOT / "docs" / page).read_text(), re.S)


def test_the_unit_test_of_a_response_holds_as_it_is_printed(tmp_path):
    shutil.copy(ROOT / "rules/data_pipeline.rules.yaml", tmp_path / "my.rules.yaml")
    responses, caps = (b for b in blocks("responses.md") if b.startswith(("responses:", "caps:")))
    (tmp_path / "my.responses.yaml").write_text(responses)
    (tmp_path / "caps.yaml").write_text(caps)
    (unit_test,) = (b for b in blocks("plugins.md") if b.startswith("# responses_test.yaml"))
    (tmp_path / "responses_test.yaml").write_text(unit_test)
    result = CliRunner().invoke(_spikewatch, ["test", str(tmp_path / "responses_test.yaml")])
    assert result.exit_code == 0, result.output
    assert "1 tests, 1 checks" in result.output
