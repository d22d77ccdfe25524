import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
CODE = re.compile(r"[A-Z]+(_[A-Z]+)*")


def codes_in_source():
    found = set()
    for path in (ROOT / "src" / "ropewalk" / "spec").glob("*checks.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                code = node.args[0]
                assert isinstance(code, ast.Constant)
                assert CODE.fullmatch(code.value)
                found.add(code.value)
    return found


def test_the_page_lists_every_diagnosis_and_no_other():
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)) == codes_in_source()
