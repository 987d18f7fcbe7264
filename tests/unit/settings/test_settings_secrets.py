"""Secrets: read from files of their own, anew when they are needed; never from a command line; never shown."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from assigner.backends.etcd.auth import password_from
from assigner.errors import InvalidInput, StoreUnavailable
from assigner.secret_files import read_properties, read_secret
from assigner.settings import load
from assigner.settings.rendering import shown
from assigner.topics import KafkaSource

FILE_KEYS = ("store.password_file", "kafka.properties_file")


def secret(tmp_path: Path, text: str = "hunter2\n", mode: int = 0o600) -> str:
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def refusal(**how: object) -> str:
    with pytest.raises(InvalidInput) as refused:
        load(**how)  # type: ignore[arg-type]
    return str(refused.value)


# --- on the command line -----------------------------------------------------------------------------------------


def test_a_password_on_the_command_line_is_refused_with_the_ways_that_nobody_sees() -> None:
    said = refusal(assignments=["store.user=u", "store.password=hunter2"])
    assert "process list" in said
    assert "ASSIGNER_STORE_PASSWORD" in said
    assert "store.password_file" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "sasl.oauthbearer.config", "sasl.jaas.config"])
def test_a_secret_property_on_the_command_line_is_refused(name: str) -> None:
    said = refusal(assignments=[f'kafka.properties={{"{name}": "hunter2"}}'])
    assert "kafka.properties_file" in said
    assert "hunter2" not in said


def test_properties_that_are_no_secret_may_stand_on_the_command_line() -> None:
    loaded = load(assignments=['kafka.properties={"client.rack": "a"}'])
    assert loaded.settings.kafka.properties == {"client.rack": "a"}


# --- in a file ---------------------------------------------------------------------------------------------------


def test_a_pipe_or_a_folder_in_place_of_a_secret_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(InvalidInput, match="a folder, a pipe or a device"):
            read_secret(str(tmp_path / name))


def test_a_secret_is_the_files_text_without_its_last_line_end(tmp_path: Path) -> None:
    assert read_secret(secret(tmp_path, "hun ter2 \n")) == "hun ter2 "
    assert read_secret(secret(tmp_path, "hunter2\r\n")) == "hunter2"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"x" * 70_000])
def test_a_file_that_holds_no_secret_is_named_without_its_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="secret"):
        read_secret(str(path))


def test_properties_are_lines_of_name_and_value(tmp_path: Path) -> None:
    path = secret(tmp_path, "# comment\n\nsasl.username = u\nsasl.password=a=b c\n")
    assert read_properties(path) == {"sasl.username": "u", "sasl.password": "a=b c"}


def test_a_line_that_is_no_property_is_named_by_its_number_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="line 2") as refused:
        read_properties(secret(tmp_path, "a=b\nhunter2\n"))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("key", FILE_KEYS)
def test_a_file_that_is_not_there_is_refused_at_the_start(key: str) -> None:
    said = refusal(assignments=[f"{key}=/no/such/file", "store.user=u"])
    assert key in said
    assert "/no/such/file" in said


def test_a_password_and_a_file_for_it_contradict_each_other(tmp_path: Path) -> None:
    environment = {"ASSIGNER_STORE_PASSWORD": "p", "ASSIGNER_STORE_USER": "u"}
    said = refusal(environment=environment, assignments=[f"store.password_file={secret(tmp_path)}"])
    assert "store.password and store.password_file" in said


def test_a_password_file_wants_a_user(tmp_path: Path) -> None:
    assert "store.user" in refusal(assignments=[f"store.password_file={secret(tmp_path)}"])


# --- who may read it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [*FILE_KEYS, "grpc.tls_key", "store.tls_key"])
def test_a_secret_that_everybody_may_read_is_noted(tmp_path: Path, key: str) -> None:
    path = secret(tmp_path, "a=b\n", mode=0o644)
    others = ["store.user=u", f"grpc.tls_certificate={path}", f"store.tls_cert={path}", f"store.tls_key={path}"]
    notes = load(assignments=[*others, f"grpc.tls_key={path}", f"{key}={path}"]).notes
    assert any(key in note and "everybody" in note and "chmod" in note for note in notes), notes


def test_a_secret_that_only_its_owner_may_read_is_not(tmp_path: Path) -> None:
    assert load(assignments=["store.user=u", f"store.password_file={secret(tmp_path)}"]).notes == ()


@pytest.mark.parametrize(("mode", "noted"), [(0o644, True), (0o600, False)])
def test_a_settings_file_with_a_secret_in_it_is_looked_at_too(tmp_path: Path, mode: int, noted: bool) -> None:
    path = tmp_path / "assigner.toml"
    path.write_text('[store]\nuser = "u"\npassword = "hunter2"\n')
    path.chmod(mode)
    assert any("store.password" in note for note in load(config=str(path)).notes) is noted


# --- shown -------------------------------------------------------------------------------------------------------


def test_what_a_property_holds_besides_a_password_is_not_shown_either() -> None:
    properties = {
        "sasl.oauthbearer.config": "principal=me secret=hunter2",
        "sasl.oauthbearer.token.endpoint.url": "https://me:hunter2@login.example/token",
        "sasl.username": "me",
    }
    settings = load(environment={"ASSIGNER_KAFKA_PROPERTIES": json.dumps(properties)}).settings
    text = json.dumps(shown(settings))
    assert "hunter2" not in text
    assert "login.example" in text


# --- read anew ---------------------------------------------------------------------------------------------------


async def test_kafkas_properties_are_read_anew_when_their_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "properties"
    path.write_text("no.such=1\n")
    source = KafkaSource("127.0.0.1:1", timeout=0.2, properties_file=str(path))
    with pytest.raises(InvalidInput, match=r"no\.such"):
        await source.describe(["t"])
    path.write_text("client.rack=a\n")
    await source.describe(["t"])
    path.write_text("no.other=1\n")
    with pytest.raises(InvalidInput, match=r"no\.other"):
        await source.describe(["t"])
    await source.aclose()


async def test_properties_that_are_being_replaced_leave_the_client_that_works(tmp_path: Path) -> None:
    path = tmp_path / "properties"
    path.write_text("client.rack=a\n")
    source = KafkaSource("127.0.0.1:1", timeout=0.2, properties_file=str(path))
    await source.describe(["t"])
    path.unlink()
    await source.describe(["t"])
    await source.aclose()


def test_the_error_for_a_secret_that_went_away_may_be_tried_again() -> None:
    with pytest.raises(StoreUnavailable, match="/no/such/file"):
        password_from("/no/such/file")
