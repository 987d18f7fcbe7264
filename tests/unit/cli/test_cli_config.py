"""`assigner config`, and the flags of the settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from click.testing import CliRunner, Result

from assigner.cli import main


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, ["config", *arguments])


def test_the_settings_in_force_are_printed_with_their_origins(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[http]\nport = 9\n[log]\nlevel = "debug"\n')
    result = run(
        "print", "--config", str(file), "--grpc-port", "7", "--store", "etcd", "--metrics-per-consumer",
        "--topic", "orders=3", "--topic", "g/t=4", "--set", "kafka.refresh_interval=5", "-o", "json",
        ASSIGNER_HTTP_HOST="127.0.0.9",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    settings, origins = printed["settings"], printed["origins"]
    assert settings["grpc"]["port"] == 7
    assert settings["http"] == {"host": "127.0.0.9", "port": 9, "stall": 10.0}
    assert settings["topics"] == {"default": {"orders": 3}, "g": {"t": 4}}
    assert settings["metrics"]["per_consumer"] is True
    assert origins["log.level"] == f"file {file}"
    assert origins["http.host"] == "environment ASSIGNER_HTTP_HOST"
    assert origins["kafka.refresh_interval"] == "flag --set kafka.refresh_interval"
    assert origins["store.backend"] == "flag --store"


def test_the_print_is_toml_by_default() -> None:
    assert tomllib.loads(run("print").stdout)["grpc"]["port"] == 50051


def test_valid_settings_are_called_so_and_notes_go_to_stderr() -> None:
    result = run("validate", STREAM_CHANNEL_SIZE="3")
    assert result.exit_code == 0
    assert result.stdout == "the settings are valid\n"
    assert "STREAM_CHANNEL_SIZE has no effect" in result.stderr


def test_invalid_settings_are_exit_code_2_with_every_problem() -> None:
    result = run("validate", "--grpc-port", "x", "--set", "http.prot=1", ASSIGNER_LOG_LEVL="info")
    assert result.exit_code == 2
    assert "3 problems" in result.stderr
    assert "did you mean http.port?" in result.stderr
    assert "did you mean ASSIGNER_LOG_LEVEL?" in result.stderr


def test_a_topic_flag_must_have_a_number() -> None:
    result = run("validate", "--topic", "orders")
    assert result.exit_code == 2
    assert "is not GROUP/TOPIC=N" in result.stderr


def test_the_schema_is_json() -> None:
    assert json.loads(run("schema").stdout)["$ref"] == "#/$defs/Settings"
