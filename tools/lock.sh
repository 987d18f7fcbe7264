#!/bin/sh
# Write requirements/*.lock. `sh tools/lock.sh --upgrade` takes the newest versions of everything.
set -eu
cd "$(dirname "$0")/.."
: "${UV:=uv}"

# The locks hold versions and hashes only: where packages come from is each machine's own matter.
compile() {
    output=$1
    shift
    "$UV" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-annotate \
        --custom-compile-command "make lock" --output-file "requirements/$output" "$@"
}

constrained="--constraint requirements/dev.lock"
compile dev.lock "$@" pyproject.toml --extra all --group dev
# The other locks agree with dev.lock on every version.
# shellcheck disable=SC2086
compile run.lock pyproject.toml --extra server --extra kafka --extra gateway --extra tracing $constrained
# shellcheck disable=SC2086
compile spark.lock pyproject.toml --extra spark $constrained
# shellcheck disable=SC2086
echo uv | compile bootstrap.lock - $constrained
# shellcheck disable=SC2086
echo setuptools | compile build.lock - $constrained

if grep -nE '://|index-url|find-links' requirements/*.lock; then
    echo "A lock file names a package index (above); remove the option that emitted it." >&2
    exit 1
fi
