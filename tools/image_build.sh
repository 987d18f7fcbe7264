#!/bin/sh
# The steps of the image's build, run in a directory with the sources:
#   image_build.sh dependencies TARGET   make an environment at TARGET with what run.lock lists
#   image_build.sh project TARGET        build the project's wheel and install it there
set -eu

step=$1
target=$2
: "${PYTHON:=python3}"

# The environment gets no pip: it is filled from outside, and stays as it is.
into_target() {
    "$PYTHON" -m pip --python "$target/bin/python" install --quiet "$@"
}

dependencies() {
    "$PYTHON" -m venv --without-pip "$target"
    into_target --require-hashes --only-binary :all: --requirement requirements/run.lock
}

project() {
    workshop=$(mktemp -d)
    trap 'rm -rf "$workshop"' EXIT
    "$PYTHON" -m venv "$workshop/venv"
    builder="$workshop/venv/bin/python"
    "$builder" -m pip install --quiet --require-hashes --requirement requirements/build.lock
    "$builder" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$workshop/wheels" .
    into_target --no-deps --no-index "$workshop"/wheels/*.whl
}

case $step in
    dependencies | project) "$step" ;;
    *)
        echo "image_build.sh: unknown step '$step'; it is either 'dependencies' or 'project'" >&2
        exit 2
        ;;
esac
