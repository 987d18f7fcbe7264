"""The archives of Spark's classes that are kept between test runs."""

from __future__ import annotations

import os
from pathlib import Path

from tools.archive_spark import prune


def test_only_the_newest_archives_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(["spark-d.jsa", "spark-b.jsa", "spark-c.jsa", "spark-a.jsa"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "etcd-3").mkdir()
    prune(tmp_path, keep=2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["etcd-3", "spark-b.jsa", "spark-d.jsa"]
