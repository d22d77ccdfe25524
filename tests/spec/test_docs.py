import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_examples_of_the_page_on_scaling_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    exec("\n".join(blocks), {})
