"""Tables of benchmarks replace those of a run before, and nothing else of their page."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.sheets import Sheet, marks, page, write_between


def test_the_page_is_rewritten_between_its_marks_only(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    begin, end = marks("mine")
    others = "\n".join(marks("others"))
    path.write_text(f"above\n{others}\n{begin}\nold\n{end}\nbelow\n")
    write_between(path, "mine", page(Sheet("Title", "note", ["a", "b"], [["1", "2"]])))
    text = path.read_text()
    assert text.startswith(f"above\n{others}\n")
    assert text.endswith("below\n")
    assert "| 1 | 2 |" in text
    assert "old" not in text


def test_a_page_without_the_marks_says_which_to_add(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("\n".join(marks("others")))
    with pytest.raises(ValueError, match=r"has no <!-- mine: begin --> ... <!-- mine: end -->; add both"):
        write_between(path, "mine", "")
