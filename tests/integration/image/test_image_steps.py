"""The image's build and start, done by the Dockerfile's own steps, since Docker is not everywhere."""

from __future__ import annotations

import faulthandler
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project.dockerfile import Stage, Step, read_dockerfile
from tests.support.servers.ports import free_port
from tests.support.servers.process import ServerProcess, answers

ROOT = Path(__file__).parents[3]
BUILDER, FINAL = read_dockerfile(ROOT / "Dockerfile")
# Where the image has its environment.
PREFIX = "/opt/assigner"
READY_SECONDS = 30.0
STOP_SECONDS = 15.0
PATIENCE = 600

# One worker runs them all: the environment takes half a minute to build.
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("image")]


def run_builder(stage: Stage, source: Path, prefix: Path) -> None:
    """Do what Docker would do for the builder's stage, in *source* instead of its work directory."""
    environment = {**os.environ, "PYTHON": sys.executable}
    for step in stage.steps:
        if step.instruction == "COPY":
            *paths, target = step.words()
            for path in paths:
                # Like Docker: into a directory where the target ends with a slash, else to that name.
                copy(ROOT / path, source / target / path if target.endswith("/") else source / target)
        if step.instruction == "RUN":
            command = shlex.split(step.arguments.replace(PREFIX, str(prefix)))
            subprocess.run(command, cwd=source, env=environment, check=True)


def copy(origin: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if origin.is_dir():
        shutil.copytree(origin, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(origin, target)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that the final stage gets from the builder."""
    # Beside other tests an installation may take longer than a test is usually given.
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    directory = tmp_path_factory.mktemp("image")
    run_builder(BUILDER, directory / "source", directory / "assigner")
    # The sources are no part of the image: what runs must be what was installed.
    shutil.rmtree(directory / "source")
    return directory / "assigner"


def test_the_final_stage_takes_only_the_environment() -> None:
    assert FINAL.only("COPY").arguments == f"--from=builder {PREFIX} {PREFIX}"


def test_the_service_runs_as_a_numeric_user_that_is_not_root() -> None:
    user, group = FINAL.only("USER").arguments.split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_entry_point_gets_the_signals_itself() -> None:
    # In the shell's form a shell would be process 1, and SIGTERM would end it alone.
    assert FINAL.only("ENTRYPOINT").arguments == '["assigner", "serve"]'


def test_the_ports_are_the_documented_ones() -> None:
    assert FINAL.only("EXPOSE").words() == ["50051", "8080"]


def test_there_is_no_pip_in_the_environment(installed: Path) -> None:
    asked = subprocess.run([installed / "bin" / "python", "-c", "import pip"], check=False, capture_output=True)
    assert asked.returncode != 0


def test_the_service_starts_gets_ready_and_ends_on_sigterm(installed: Path, tmp_path: Path) -> None:
    grpc_port, http_port = free_port(), free_port()
    environment = {
        "PATH": f"{installed / 'bin'}:{os.defpath}",
        "ASSIGNER_HTTP_PORT": str(http_port),
        "HOME": str(tmp_path),
    }
    program, *arguments = FINAL.only("ENTRYPOINT").words()
    options = ["--store", "memory", "--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    command = [str(installed / "bin" / program), *arguments, *options]
    service = ServerProcess(command, tmp_path / "service.log", environment)
    try:
        service.wait_until(lambda: answers(f"http://127.0.0.1:{http_port}/readyz"), READY_SECONDS)
        assert healthcheck(installed, environment) == 0
        status = service.terminate(STOP_SECONDS)
    finally:
        service.kill()
    assert status == 0, service.log_tail()
    assert healthcheck(installed, environment) != 0


def test_the_service_in_the_image_is_reached_from_outside_of_it(installed: Path, tmp_path: Path) -> None:
    """127.0.0.2 stands for an address from outside: what is bound to 127.0.0.1 does not answer there."""
    grpc_port, http_port = free_port(), free_port()
    environment = {**image_environment(installed), "ASSIGNER_HTTP_PORT": str(http_port)}
    program, *arguments = FINAL.only("ENTRYPOINT").words()
    command = [str(installed / "bin" / program), *arguments, "--grpc-port", str(grpc_port)]
    command += ["--insecure", "--auth-required", "false"]
    service = ServerProcess(command, tmp_path / "service.log", environment)
    try:
        service.wait_until(lambda: answers(f"http://127.0.0.2:{http_port}/readyz"), READY_SECONDS)
        with socket.create_connection(("127.0.0.2", grpc_port), timeout=READY_SECONDS):
            pass
        assert healthcheck(installed, environment) == 0
    finally:
        service.kill()


def test_the_image_does_not_serve_others_without_tls_and_identities_unless_told_to(installed: Path) -> None:
    program, *arguments = FINAL.only("ENTRYPOINT").words()
    command = [str(installed / "bin" / program), *arguments, "--grpc-port", "0", "--http-port", "0"]
    ended = subprocess.run(
        command, env=image_environment(installed), check=False, capture_output=True, text=True, timeout=READY_SECONDS
    )
    assert ended.returncode == 2
    assert "insecure" in ended.stderr
    assert "--auth-required false" in ended.stderr


def image_environment(installed: Path) -> dict[str, str]:
    """What the final stage sets, with the environment where it is here."""
    told = [word.partition("=") for step in FINAL.all("ENV") for word in step.words()]
    return {name: value.replace(PREFIX, str(installed)).replace("${PATH}", os.defpath) for name, _, value in told}


def healthcheck(installed: Path, environment: dict[str, str]) -> int:
    """Run the image's health check and return its status."""
    _, _, command = FINAL.only("HEALTHCHECK").arguments.partition("CMD ")
    words = Step("CMD", command.strip()).words()
    words[0] = str(installed / "bin" / words[0])
    return subprocess.run(words, env=environment, check=False, capture_output=True).returncode
