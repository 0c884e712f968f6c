#!/usr/bin/env bash
# Runs every benchmark; each prints a table and keeps JSON in bench-out/.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p bench-out
for bench in libs/*/benchmarks/*.py services/*/benchmarks/*.py; do
	[ -f "$bench" ] || continue
	name=$(basename "$(dirname "$(dirname "$bench")")")-$(basename "$bench" .py)
	echo "== $bench"
	.venv/bin/python "$bench" --json "bench-out/$name.json"
done
