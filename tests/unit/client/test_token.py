"""The token that a client shows: where it comes from, when it is read again, and that nobody sees it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from grpclib.const import Status

from assigner.client import AdminClient
from assigner.client.channel import Dialer, error_of
from assigner.client.token import MAX_BYTES, TokenSource, token_source
from assigner.errors import InvalidInput, PermissionDenied, Unauthenticated

FIRST, SECOND = "head.first-payload.signature", "head.second-payload.signature"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{FIRST}\n")
    return path


def test_a_text_is_the_token_without_the_white_space_around_it() -> None:
    assert TokenSource(f" {FIRST}\n").current() == FIRST


def test_a_function_is_asked_at_each_call() -> None:
    tokens = iter([FIRST, SECOND])
    source = TokenSource(lambda: next(tokens))
    assert [source.current(), source.current()] == [FIRST, SECOND]


def test_a_file_is_read_again_when_it_was_written_anew(file: Path) -> None:
    source = TokenSource(file)
    assert source.current() == FIRST
    file.write_text(SECOND)
    assert source.current() == SECOND


def test_a_file_is_read_again_when_the_link_to_it_was_swapped_as_kubernetes_does(tmp_path: Path) -> None:
    for name, token in (("one", FIRST), ("two", SECOND)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(token)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "token").symlink_to("..data/token")
    source = TokenSource(tmp_path / "token")
    assert source.current() == FIRST
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").replace(tmp_path / "..data")
    assert source.current() == SECOND


@pytest.mark.parametrize("content", [None, b"", b"two words", b"\xff\xfe", b"x" * (MAX_BYTES + 1), b"a\nb"])
def test_a_file_that_can_not_be_used_any_more_leaves_the_last_token_and_is_logged_once(
    file: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    source = TokenSource(file)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert [source.current() for _ in range(3)] == [FIRST] * 3
    assert [record.getMessage().split()[0] for record in caplog.records] == ["token_reload_failed"]
    file.write_text(SECOND)
    assert source.current() == SECOND


def test_a_pipe_in_place_of_the_file_keeps_the_client_waiting_neither_at_the_start_nor_later(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = TokenSource(file)
    file.unlink()
    os.mkfifo(file)
    assert without_waiting(file, source.current) == FIRST
    assert "a folder, a pipe or a device" in caplog.text
    assert "a folder, a pipe or a device" in without_waiting(file, lambda: refusal(file))
    file.unlink()
    file.write_text(SECOND)
    assert source.current() == SECOND


def refusal(path: Path) -> str:
    with pytest.raises(InvalidInput) as refused:
        TokenSource(path)
    return str(refused.value)


def without_waiting(pipe: Path, work: Callable[[], str]) -> str:
    """What the work returns, or that it waits for somebody to write into the pipe."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(20)
    if thread.is_alive():
        os.close(os.open(pipe, os.O_WRONLY))
        thread.join()
        return "it waits for a writer"
    return found[0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "check the path"),
        (lambda path: path.mkdir(), "a folder, a pipe or a device"),
        (lambda path: path.symlink_to(path), "symbolic links"),
    ],
)
def test_a_token_file_that_is_none_is_refused_with_what_it_is(
    tmp_path: Path, make: Callable[[Path], None], says: str
) -> None:
    make(tmp_path / "token")
    assert says in refusal(tmp_path / "token")


def test_what_is_wrong_in_a_file_is_not_answered_with_how_to_give_one(file: Path) -> None:
    file.write_text("-----BEGIN PUBLIC KEY-----")
    assert "assigner token issue" in refusal(file)
    assert "pathlib" not in refusal(file)


def test_a_file_that_is_not_there_at_the_start_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"token file .*/none"):
        TokenSource(tmp_path / "none")


@pytest.mark.parametrize("token", ["", "  ", "two words", "/var/run/token", "ümlaut", "x" * (MAX_BYTES + 1), "a\nb"])
def test_what_is_no_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        TokenSource(token)
    assert not token.strip() or token not in str(caught.value)


def test_a_path_given_as_a_text_is_answered_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match=r"pathlib\.Path"):
        TokenSource("/var/run/secrets/token")


@pytest.mark.parametrize("error", [RuntimeError("no vault"), OSError("gone")])
def test_a_function_that_fails_is_the_calls_error(error: Exception) -> None:
    def fail() -> str:
        raise error

    with pytest.raises(InvalidInput, match=str(error)):
        TokenSource(fail).current()


def test_a_token_is_in_no_representation(file: Path) -> None:
    for given in (FIRST, file, lambda: FIRST):
        source = token_source(given)
        assert source is not None
        source.current()
        dialer = Dialer(None, 1.0, 1.0, source)
        for text in (repr(source), str(source), repr(dialer), repr(AdminClient("h:1", token=given))):
            assert "payload" not in text


@pytest.mark.parametrize(
    ("status", "error"), [(Status.UNAUTHENTICATED, Unauthenticated), (Status.PERMISSION_DENIED, PermissionDenied)]
)
def test_the_services_denials_are_errors_of_their_own(status: Status, error: type[Exception]) -> None:
    assert type(error_of(status, "no", error.__name__)) is error
    assert type(error_of(status, "no", "")) is error
