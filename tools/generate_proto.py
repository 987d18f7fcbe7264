"""Generates `assigner/proto/` from `protos/`: messages, stubs and bases for grpclib, and the descriptor set.

The result depends on the .proto files and the locked compiler alone, so it is committed, and `--check` tells whether
the committed code is what would be generated now.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
OUTPUT = ROOT / "assigner" / "proto"
WRITTEN_BY_HAND = frozenset({"runtime.py", "classic_groups.py"})
DESCRIPTORS = "descriptors.binpb"


def generate() -> dict[str, bytes]:
    """Each generated file's content by its path under `assigner/proto/`."""
    with tempfile.TemporaryDirectory() as folder:
        _compile(Path(folder))
        files = (path for path in Path(folder).rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _compile(folder: Path) -> None:
    protos = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.rglob("*.proto"))
    scripts = Path(sys.executable).parent
    # The plugin formats with the ruff it finds on the path, by the settings it finds around the working directory:
    # ours comes first, and there are none.
    environment = dict(os.environ, PATH=f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}")
    environment["XDG_CONFIG_HOME"] = str(folder)
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={PROTOS}",
        f"--plugin=protoc-gen-python_betterproto2={scripts / 'protoc-gen-python_betterproto2'}",
        f"--python_betterproto2_out={folder}",
        "--python_betterproto2_opt=client_generation=async",
        "--python_betterproto2_opt=server_generation=async",
        "--include_imports",
        f"--descriptor_set_out={folder / DESCRIPTORS}",
        *protos,
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"protoc failed on {PROTOS}:\n{done.stderr}")


def committed() -> dict[str, bytes]:
    """What lies in `assigner/proto/` now."""
    files = (path for path in OUTPUT.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    files = (path for path in files if path.name not in WRITTEN_BY_HAND)
    return {path.relative_to(OUTPUT).as_posix(): path.read_bytes() for path in files}


def differences() -> list[str]:
    """The files that are missing, superfluous or not as they would be generated now."""
    wanted, found = generate(), committed()
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write() -> None:
    wanted = generate()
    for name in committed().keys() - wanted.keys():
        (OUTPUT / name).unlink()
    for name, content in wanted.items():
        path = OUTPUT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the committed code differs")
    if not parser.parse_args().check:
        write()
        return 0
    changed = differences()
    for name in changed:
        print(f"{OUTPUT / name} differs from what protos/ would generate; run `make proto`", file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
