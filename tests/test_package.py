"""What holds for the package as a whole: imports, public names, the README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ropewalk

ROOT = Path(__file__).parent.parent


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_loads_the_description_alone():
    heavy = run(
        "import sys, ropewalk; ropewalk.RopeSpec(64, 'half').inv_freq();"
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'typer') if m in sys.modules])"
    )
    assert heavy.strip() == "[]"


def test_every_public_name_exists_and_is_listed():
    for name in ropewalk.__all__:
        assert getattr(ropewalk, name) is not None
    assert set(dir(ropewalk)) == set(ropewalk.__all__)
    assert set(ropewalk._LAZY) <= set(ropewalk.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'RotaryEmbeding'"):
        ropewalk.RotaryEmbeding  # noqa: B018


def test_missing_extra_names_the_remedy():
    message = run(
        "import sys; sys.modules['transformers'] = None\n"
        "import ropewalk\n"
        "try: ropewalk.RoFormerModel\n"
        "except ImportError as error: print(error)"
    )
    assert message.strip() == (
        "ropewalk.RoFormerModel needs transformers: pip install 'ropewalk[hf]'"
    )


def test_errors_are_value_errors():
    for name in ("ConfigError", "ShapeError", "CheckpointError", "DataError"):
        error = getattr(ropewalk, name)
        assert issubclass(error, ValueError)
        assert issubclass(error, ropewalk.RopewalkError)


def python_blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=[path.name for path in PAGES])
def test_pages_show_code_that_runs(path):
    blocks = python_blocks(path)
    if path.name == "README.md":
        assert blocks
    if blocks:
        run("\n".join(blocks))


def test_readme_tree_names_every_file_of_the_package():
    tree = (ROOT / "README.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "ropewalk"
    files = {path.relative_to(package) for path in package.rglob("*.py")}
    missing = [
        str(path)
        for path in sorted(files)
        if path.name not in ("__init__.py", "__main__.py", "_version.py") and path.name not in tree
    ]
    assert missing == []


def test_no_file_outgrows_the_ceiling():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "src").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}
