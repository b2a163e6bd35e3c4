"""Zero-code attach is armed where the environment allows the script, and leaves Python's start-up alone elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

import spikewatch
from spikewatch.zerocode import Waiting, allowed, script_of
from spikewatch.zerocode_run import environment, folder, main

ROOT = Path(spikewatch.__file__).parents[1]
TELL = "import sys; print([type(f).__name__ for f in sys.meta_path if type(f).__name__ == 'Waiting'])"


def python(arguments, clean_environment, **more):
    return subprocess.run(
        [sys.executable, *arguments],
        env={**clean_environment, "PYTHONPATH": str(folder()), **more},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python", "train.py", "--epochs", "3"], "train.py"),
        (["python", "-u", "/jobs/a/train.py"], "train.py"),
        (["python", "-X", "dev", "-W", "error", "train.py"], "train.py"),
        (["python", "-m", "pkg.train", "x"], "pkg.train"),
        (["python", "-c", "import torch"], ""),
        (["python", "-"], ""),
        (["python"], ""),
        (["python", "-m"], ""),
    ],
)
def test_the_script_is_read_off_the_command_line(command, script):
    assert script_of(command) == script


def test_the_switch_names_any_script_or_some():
    assert allowed("1", "train.py")
    assert allowed("1", "")
    assert allowed("eval.py, train.py", "train.py")
    assert not allowed("eval.py", "train.py")
    assert not allowed("", "train.py")
    assert not allowed("0", "train.py")


def test_a_python_is_armed_only_where_the_environment_says_so(clean_environment):
    assert python(["-c", TELL], clean_environment).stdout == "[]\n"
    assert python(["-c", TELL], clean_environment, SPIKEWATCH_AUTOATTACH="train.py").stdout == "[]\n"
    assert python(["-c", TELL], clean_environment, SPIKEWATCH_AUTOATTACH="1", SPIKEWATCH_DISABLE="1").stdout == "[]\n"
    armed = python(["-c", TELL], clean_environment, SPIKEWATCH_AUTOATTACH="1")
    assert (armed.stdout, armed.stderr) == ("['Waiting']\n", "")


def test_an_armed_python_has_not_imported_torch(clean_environment):
    done = python(["-c", "import sys; print('torch' in sys.modules)"], clean_environment, SPIKEWATCH_AUTOATTACH="1")
    assert done.stdout == "False\n"


def test_the_sitecustomize_that_ours_hides_is_run(clean_environment, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine', __name__, __file__)\n")
    path = f"{folder()}:{tmp_path}"
    for more in ({}, {"SPIKEWATCH_AUTOATTACH": "1"}):
        done = python(["-c", "import sitecustomize"], clean_environment, PYTHONPATH=path, **more)
        assert done.stdout == f"mine sitecustomize {tmp_path}/sitecustomize.py\n"


def test_without_an_installed_package_only_the_package_beside_the_folder_becomes_importable(
    clean_environment, tmp_path
):
    # a torch that shows when the package is needed, and that an error of ours does not reach its import
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    for name in ("torch/__init__", "torch/optim/__init__", "torch/optim/optimizer"):
        (tmp_path / f"{name}.py").touch()
    code = (
        "import sys, torch.optim.optimizer\n"
        "print(sys.modules['spikewatch'].__file__)\n"
        "try: import sidecar\n"
        "except ImportError: print('no sidecar')"
    )
    # -s and no site-packages of ours: an interpreter that has never heard of spikewatch
    bare = [getattr(sys, "_base_executable", sys.executable), "-s", "-c", code]
    done = subprocess.run(
        bare,
        env={**clean_environment, "PYTHONPATH": str(folder()), "SPIKEWATCH_AUTOATTACH": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == [str(ROOT / "spikewatch" / "__init__.py"), "no sidecar"], done.stderr


def test_a_module_that_is_waited_for_is_imported_as_ever_and_then_announced(tmp_path, monkeypatch):
    (tmp_path / "waited_for.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    finder = Waiting({"waited_for": lambda module: seen.append(module.value)})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import waited_for

    try:
        assert seen == [7]
        assert type(waited_for.__loader__).__name__ == type(waited_for.__spec__.loader).__name__ == "SourceFileLoader"
        assert finder not in sys.meta_path
    finally:
        del sys.modules["waited_for"]


def test_a_module_that_is_waited_for_and_missing_is_missing_as_ever(monkeypatch):
    finder = Waiting({"waited_for": print})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="waited_for"):
        import waited_for  # noqa: F401


def test_the_command_gets_the_folder_first_and_keeps_what_was_set():
    made = environment({"PYTHONPATH": "/a:/b", "SPIKEWATCH_AUTOATTACH": "train.py", "X": "y"})
    assert made == {"PYTHONPATH": f"{folder()}:/a:/b", "SPIKEWATCH_AUTOATTACH": "train.py", "X": "y"}
    assert environment({}) == {"PYTHONPATH": str(folder()), "SPIKEWATCH_AUTOATTACH": "1"}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "usage: spikewatch-run"),
        (["--help"], 0, "usage: spikewatch-run"),
        (["--path"], 0, "spikewatch/startup"),
        (["--nproc", "2"], 2, "no option --nproc"),
        (["/no/such/program"], 127, "No such file"),
        (["/no/such/train.py"], 127, "spikewatch-run python /no/such/train.py"),
    ],
)
def test_the_console_script_says_what_to_do(words, code, says, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(words)
    said = capsys.readouterr()
    assert exit_.value.code == code
    assert says in said.out + said.err
