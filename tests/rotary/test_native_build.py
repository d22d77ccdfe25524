"""The compiled kernel as part of the package: built, left out, shipped, and its threads."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import ropewalk as rw

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src/ropewalk/rotary/kernels/csrc"


def python(code, *, path=None, **environment):
    """Run a program with another installation first on the path; return what it prints."""
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "ROPEWALK_NATIVE")}
    if path is not None:
        clean["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path):
    """A copy of what a build reads, without anything that was built before."""
    pytest.importorskip("setuptools", "77", reason="the build needs a recent setuptools")
    root = tmp_path / "checkout"
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", root / "src", ignore=built)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root / name)
    return root


def install(checkout, target, **environment):
    """Install a checkout beside the real installation, without network."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    done = subprocess.run(
        [*command, str(checkout)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(path.name for path in (target / "ropewalk/rotary/kernels").iterdir())


ROTATE = """
import torch, ropewalk as rw
from ropewalk.rotary.kernels import native_status
x = torch.randn(2, 3, 40, 32, generator=torch.Generator().manual_seed(0))
cos, sin = rw.RotaryEmbedding(rw.RopeSpec(32, "half")).table(torch.arange(40))
torch.save([rw.rotate(x.to(dtype), cos, sin, layout="half") for dtype in
            (torch.float32, torch.bfloat16, torch.float16)], PATH)
print(rw.available_kernels(), native_status(), rw.__file__, sep="\\n")
"""


def test_without_a_compiler_the_package_installs_and_computes_the_same(checkout, tmp_path):
    target, saved = tmp_path / "site", tmp_path / "rotated.pt"
    files = install(checkout, target, CC="false")
    assert not [name for name in files if name.startswith("_native")]
    program = ROTATE.replace("PATH", repr(str(saved)))
    kernels, status, where = python(program, path=target).splitlines()
    assert kernels == "('reference', 'eager')"
    assert status.startswith("native: the extension was not built; reinstall ropewalk")
    assert where.startswith(str(target))
    x = torch.randn(2, 3, 40, 32, generator=torch.Generator().manual_seed(0))
    table = rw.RotaryEmbedding(rw.RopeSpec(32, "half")).table(torch.arange(40))
    for y in torch.load(saved, weights_only=True):
        # "auto" is the compiled kernel, where this installation has one
        assert torch.equal(y, rw.rotate(x.to(y.dtype), *table, layout="half"))


@pytest.mark.slow
def test_an_installation_has_the_compiled_kernel_and_not_its_sources(checkout, tmp_path):
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("needs a C compiler")
    files = install(checkout, tmp_path / "site")
    assert "csrc" not in files
    assert any(name.startswith("_native.") for name in files)
    status = "from ropewalk.rotary.kernels import native_status; print(native_status())"
    assert "threads of" in python(status, path=tmp_path / "site")


def test_the_source_distribution_has_every_file_of_the_kernel(checkout, tmp_path):
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        shipped = {Path(name).name for name in opened.getnames() if "/csrc/" in name}
    assert shipped == {path.name for path in CSRC.iterdir()}
    assert len(shipped) > 5


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.skipif("native" not in rw.available_kernels(), reason="the extension was not built")
def test_the_kernel_runs_on_the_one_openmp_runtime_that_torch_has_loaded():
    program = """
import re, torch
import ropewalk as rw
torch.set_num_threads(2)
tasks = lambda: len(__import__("os").listdir("/proc/self/task"))
x, table = torch.randn(1, 8, 1024, 64), torch.rand(2, 1024, 32)
torch.ones(10**6).add_(1)  # torch's own pool of two threads starts
threads = tasks()
with rw.use_kernel("native"):
    for _ in range(3):
        rw.rotate(x, *table, layout="half", out=x)
print(tasks() - threads)
print(*set(re.findall(r"/\\S*/lib(?:g|i)?omp[^/\\s]*", open("/proc/self/maps").read())), sep="\\n")
"""
    more_threads, *runtimes = python(program).splitlines()
    assert len(runtimes) == 1, runtimes
    assert more_threads == "0"
