#!/usr/bin/env bash
# Pins every package that `make install` puts in .venv, and each image's, with hashes, for Python
# 3.11 to 3.13.
# Run it (make requirements) after a change to the dependencies in pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() { # compile OUT ARGUMENTS...: no index URL may stand in a pinned file
  local out=$1
  shift
  .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-annotate --no-header --output-file "$out" "$@"
  echo "$out: $(grep -c '==' "$out") packages"
}

compile requirements/dev.txt pyproject.toml requirements/build.in --extra dev
compile_image() { # compile_image NAME EXTRA...: with the versions that the tests ran with
  local name=$1
  shift
  compile "requirements/$name.txt" pyproject.toml "${@/#/--extra=}" --constraints requirements/dev.txt
}
compile_image agent engine s3 otel
compile_image router router otel
compile_image operator operator
compile requirements/build.txt requirements/build.in --constraints requirements/dev.txt
compile requirements/model.txt requirements/model.in --no-deps
compile requirements/installer.txt requirements/installer.in --no-deps
