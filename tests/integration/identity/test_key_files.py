"""Key files that are replaced or broken under a running server, in each of the ways in which that happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from assigner.auth.issuing import public_pem
from assigner.errors import InvalidInput
from tests.support.fakes.grpc_serving import Serving, eventually
from tests.support.fakes.guarded_serving import Guarded, renewal
from tests.support.signed_tokens import Signer

Replace = Callable[[Path, str], None]


def write_over(path: Path, text: str) -> None:
    path.write_text(text)


def rename_over(path: Path, text: str) -> None:
    """As editors, `assigner token keygen --force` and configuration tools do."""
    beside = path.parent.parent / "beside"
    beside.write_text(text)
    beside.replace(path)


def swap_the_folder(path: Path, text: str) -> None:
    """As Kubernetes does: files are links into a hidden folder, and one rename swaps the link to that."""
    folder = path.parent
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    (version / path.name).write_text(text)
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").replace(folder / "..data")
    if not path.is_symlink():
        path.unlink()
        path.symlink_to(f"..data/{path.name}")


def link_to_another(path: Path, text: str) -> None:
    target = path.parent.parent / f"target-{len(text)}"
    target.write_text(text)
    beside = path.parent.parent / "link"
    beside.symlink_to(target)
    beside.replace(path)


def keep_its_times(path: Path, text: str) -> None:
    """As `cp -p` and archives do."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


WAYS = (write_over, rename_over, swap_the_folder, link_to_another, keep_its_times)


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


def state(service: Serving) -> Any:
    authenticator = service.server.access.authenticator
    assert authenticator is not None
    return authenticator.statistics().keys


async def takes(guarded: Guarded, service: Serving, signer: Signer) -> bool:
    """Whether the server takes the signer's tokens."""
    try:
        await service.consumer().renew(renewal(), metadata=guarded.shows(signer))
    except GRPCError as error:
        if error.status is not Status.UNAUTHENTICATED:
            raise
        return False
    return True


@pytest.mark.parametrize("replace", WAYS)
async def test_two_keys_are_live_at_once_and_then_the_new_one_however_the_file_is_replaced(
    guarded: Guarded, replace: Replace
) -> None:
    file, old, new = guarded.keys / "one.pem", guarded.signer, Signer()
    replace(file, public_pem(old.key))
    async with guarded.serving() as service:
        assert [await takes(guarded, service, one) for one in (old, new)] == [True, False]
        replace(file, public_pem(old.key) + public_pem(new.key))
        await eventually(lambda: state(service).reloads == 1)
        assert [await takes(guarded, service, one) for one in (old, new)] == [True, True]
        replace(file, public_pem(new.key))
        await eventually(lambda: state(service).reloads == 2)
        assert [await takes(guarded, service, one) for one in (old, new)] == [False, True]
        assert state(service).failures == 0


def cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 30)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def removed_with_its_folder(file: Path) -> None:
    file.unlink()
    file.parent.rmdir()


def made_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def made_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def linked_to_itself(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def joined_by_a_private_key(file: Path) -> None:
    Signer().keep(file.with_name("two.pem"))


@pytest.mark.parametrize(
    "breaks",
    [
        cut_off,
        emptied,
        removed_with_its_folder,
        made_a_pipe,
        made_a_folder,
        linked_to_itself,
        joined_by_a_private_key,
    ],
)
async def test_keys_that_break_leave_the_last_good_ones_in_force_and_a_metric_rises(
    guarded: Guarded, breaks: Callable[[Path], None]
) -> None:
    file = guarded.keys / "one.pem"
    file.write_text(public_pem(Signer().key) + public_pem(guarded.signer.key))
    async with guarded.serving() as service:
        breaks(file)
        await eventually(lambda: state(service).failures == 1)
        assert await takes(guarded, service, guarded.signer)
        assert not await takes(guarded, service, Signer())
        before = state(service).age
        await eventually(lambda: state(service).age > before)
        assert (state(service).failures, state(service).reloads) == (1, 0)


@pytest.mark.parametrize("breaks", [cut_off, emptied, removed_with_its_folder, made_a_pipe, joined_by_a_private_key])
async def test_a_service_does_not_start_with_broken_keys_and_says_which(
    guarded: Guarded, breaks: Callable[[Path], None]
) -> None:
    breaks(guarded.keys / "one.pem")
    with pytest.raises(InvalidInput, match=r"/keys(/one\.pem|/two\.pem)?[: ]"):
        async with guarded.serving():
            pass
