"""Files that are reloaded: what is in force after each change, and what is counted and logged."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from assigner.auth.reload import COMPARED_BYTES, MOST_ENTRIES, ReloadedFiles
from assigner.clock import LoopClock
from assigner.errors import InvalidInput


class Reads:
    """Files whose content is their text, which may not be empty."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.reads = 0
        self.fails = 0
        """How many of the next reads fail, whatever the files are."""
        self.files = ReloadedFiles("texts", [str(path) for path in paths], self.read, LoopClock(), interval=5)

    def read(self) -> str:
        self.reads += 1
        if self.fails:
            self.fails -= 1
            raise OSError("too many open files")
        text = "".join(path.read_text() for path in self.paths)
        if not text:
            raise InvalidInput("nothing is there; write something")
        return text

    def write(self, text: str) -> None:
        self.paths[0].write_text(text)

    def write_in_the_same_moment(self, text: str) -> None:
        before = self.paths[0].stat()
        self.write(text)
        os.utime(self.paths[0], ns=(before.st_atime_ns, before.st_mtime_ns))

    def remove(self) -> None:
        self.paths[0].unlink()

    async def look(self) -> str:
        await self.files.look()
        return self.files.current


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    return path


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.msg) for record in caplog.records if "files_reload_failed" in str(record.msg)]


async def test_what_has_not_changed_is_not_read_again(path: Path) -> None:
    reads = Reads(path)
    await reads.files.load()
    for _ in range(3):
        assert await reads.look() == "one"
    assert reads.reads == 1


async def test_a_change_is_in_force_after_the_next_look(path: Path) -> None:
    reads = Reads(path)
    await reads.files.load()
    reads.write("two")
    assert reads.files.current == "one"
    assert await reads.look() == "two"
    assert (reads.files.reloads, reads.files.failures) == (1, 0)


async def test_a_change_of_the_same_size_and_time_is_noticed(path: Path) -> None:
    reads = Reads(path)
    await reads.files.load()
    reads.write_in_the_same_moment("two")
    assert await reads.look() == "two"


async def test_a_swap_of_links_as_kubernetes_makes_it_is_noticed(tmp_path: Path) -> None:
    for version, text in (("..1", "one"), ("..2", "two")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "file").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "file").symlink_to("..data/file")
    reads = Reads(tmp_path / "file")
    await reads.files.load()
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert await reads.look() == "two"


async def test_a_file_more_or_less_in_a_folder_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    listed: ReloadedFiles[list[str]] = ReloadedFiles(
        "names", [str(tmp_path)], lambda: sorted(one.name for one in tmp_path.iterdir()), LoopClock()
    )
    await listed.load()
    (tmp_path / "b").write_text("b")
    await listed.look()
    assert listed.current == ["a", "b"]
    (tmp_path / "a").unlink()
    await listed.look()
    assert listed.current == ["b"]


async def test_a_file_that_breaks_leaves_the_last_good_one_and_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reads = Reads(path)
    await reads.files.load()
    reads.write("")
    for _ in range(3):
        assert await reads.look() == "one"
    assert reads.files.failures == len(failures(caplog)) == 1
    assert str(path) in failures(caplog)[0]
    reads.write("two")
    assert await reads.look() == "two"


async def test_a_file_that_vanishes_leaves_the_last_good_one(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reads = Reads(path)
    await reads.files.load()
    reads.remove()
    for _ in range(3):
        assert await reads.look() == "one"
    assert reads.files.failures == len(failures(caplog)) == 1


async def test_each_new_breakage_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reads = Reads(path)
    await reads.files.load()
    reads.write("")
    await reads.look()
    reads.remove()
    await reads.look()
    assert len(failures(caplog)) == 2


async def test_a_read_that_failed_by_chance_is_repeated_although_the_file_stays_as_it_is(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reads = Reads(path)
    await reads.files.load()
    reads.write("two")
    reads.fails = 3
    for _ in range(3):
        assert await reads.look() == "one"
    assert reads.files.failures == len(failures(caplog)) == 1
    assert await reads.look() == "two"
    assert reads.reads == 5


async def test_a_file_that_comes_back_as_it_was_is_good_again(path: Path) -> None:
    reads = Reads(path)
    await reads.files.load()
    reads.remove()
    await reads.look()
    reads.write("one")
    assert await reads.look() == "one"
    assert reads.files.reloads == 1


async def test_files_that_can_not_be_used_at_the_start_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"texts can't be set up from .*missing"):
        await Reads(tmp_path / "missing").files.load()
    (tmp_path / "empty").write_text("")
    with pytest.raises(InvalidInput, match="nothing is there"):
        await Reads(tmp_path / "empty").files.load()


async def test_a_pipe_in_place_of_a_file_blocks_nobody(path: Path) -> None:
    reads = Reads(path)
    await reads.files.load()
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    named: ReloadedFiles[str] = ReloadedFiles("pipe", [str(pipe)], lambda: "never read", LoopClock())
    with anyio.fail_after(30):
        await named.load()
        await named.look()


async def test_endless_files_and_folders_are_looked_at_in_part(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * (COMPARED_BYTES + 1))
    reads = Reads(large)
    await reads.files.load()
    large.write_bytes(b"x" * (COMPARED_BYTES + 2))
    assert len(await reads.look()) == COMPARED_BYTES + 2
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(2 * MOST_ENTRIES):
        (folder / f"{number:04}").touch()
    many: ReloadedFiles[str] = ReloadedFiles("many", [str(folder)], lambda: "read", LoopClock())
    await many.load()


@pytest.mark.virtual_time
async def test_the_age_rises_while_the_files_are_broken_and_only_then(path: Path) -> None:
    reads = Reads(path)
    await reads.files.load()
    ages = []
    async with anyio.create_task_group() as group:
        group.start_soon(reads.files.watch)
        for change in (None, "", None, "two", None):
            if change is not None:
                reads.write(change)
            await anyio.sleep(101)
            ages.append(reads.files.state().age)
        group.cancel_scope.cancel()
    good, broken, still_broken, repaired, after = ages
    assert max(good, repaired, after) <= 5
    assert broken > 95
    assert still_broken > 195


@pytest.mark.virtual_time
async def test_when_it_was_loaded_is_told_in_unix_time(path: Path) -> None:
    reads = Reads(path)
    await reads.files.load()
    first = reads.files.state().loaded_at
    await anyio.sleep(1000)
    reads.write("two")
    await reads.look()
    assert reads.files.state().loaded_at - first == pytest.approx(1000, abs=1)
    assert first > 1_600_000_000
