#!/usr/bin/env bash
# Runs every benchmark, or those whose path holds the first argument; each prints a table and keeps JSON in bench-out/.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p bench-out
for bench in libs/*/benchmarks/*.py services/*/benchmarks/*.py; do
	[ -f "$bench" ] && [[ $bench == *"${1:-}"* ]] || continue
	name=$(basename "$(dirname "$(dirname "$bench")")")-$(basename "$bench" .py)
	echo "== $bench"
	.venv/bin/python "$bench" --json "bench-out/$name.json"
done
