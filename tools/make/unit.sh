#!/usr/bin/env bash
# The unit tests, in two processes. Each has folders of its own, so that what is slow to import (torch above all) is
# imported once; workers that share all tests would each collect all of them.
# usage: unit.sh [FOLDER]    FOLDER: where to write reports of what was run, unit-*.xml
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=.venv/bin
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
half() { # name, folders
	$bin/python -m pytest -q -m "not slow and not model and not vllm" --durations=5 \
		--junitxml="${reports:-$out}/unit-$1.xml" "${@:2}"
}
reports=${1:-}
with_torch=(services/learner services/rollout libs/modelstore libs/runspec libs/trajectory tools)
with_torch+=(services/critic services/console services/memory) # no torch, but so both halves take about as long
mapfile -t others < <(printf '%s\n' libs/* services/* | grep -vxF "$(printf '%s\n' "${with_torch[@]}")")

half second "${with_torch[@]}" >"$out/second.log" 2>&1 &
failed=0
half first "${others[@]}" || failed=1
wait $! || failed=1
cat "$out/second.log"
exit "$failed"
