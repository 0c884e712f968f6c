#!/usr/bin/env bash
# Everything CI runs: static checks, then all tests. One closing line counts the tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=.venv/bin
step() { printf '\n== %s\n' "$*"; }

step "format, lint, types, imports, contracts"
$bin/ruff format --check -q .
$bin/ruff check -q .
$bin/buf lint protos
$bin/buf format -d --exit-code protos >/dev/null
[ ! -f protos/baseline.binpb ] || $bin/buf breaking protos --against protos/baseline.binpb
make -s types imports

step "tests"
exec $bin/python -m pytest -q libs services tools tests "$@"
