#!/usr/bin/env bash
# Everything CI runs: static checks, then all tests. The closing line counts the tests of all parts.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=.venv/bin
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
step() { printf '\n== %s\n' "$*"; }

# What sandboxes are tested over comes from the network while the checks compute.
engines=
if [ "${CI:-}" = true ]; then
	tools/make/setup_engines.sh &
	engines=$!
fi
step "format, lint, types, imports, contracts"
$bin/ruff format --check -q .
$bin/ruff check -q .
$bin/buf lint protos
$bin/buf format -d --exit-code protos >/dev/null
$bin/buf breaking protos --against protos/baseline.binpb
make -s types imports
[ -z "$engines" ] || wait "$engines"

failed=0
step "tests: unit"
tools/make/unit.sh "$out" || failed=1

# What mostly waits runs beside what computes, and comes first on the cores, since it needs them least: two parts more
# than there are cores at a time, in an order that leaves no long part for the end. A part is shown whole when it ends.
part() { # niceness, interpreter, name, pytest arguments
	local log="$out/$3.log" ended=0 began=$SECONDS
	local TIMEFORMAT="%U s user, %S s system"
	{
		time nice -n "$1" "$2" -m pytest -q --junitxml="$out/$3.xml" --durations=5 "${@:4}" >"$log" 2>&1 || ended=1
	} 2>"$out/$3.cpu"
	flock "$out" bash -c 'printf "\n== tests: %s, %d s (%s)\n" "$1" "$2" "$(<"$3")"; cat "$4"' - \
		"$3" $((SECONDS - began)) "$out/$3.cpu" "$log"
	return $ended
}
export -f part
export out
named=(services/sandbox services/grader services/learner services/rollout tools)
mapfile -t others < <(printf '%s\n' libs/* services/* | grep -vxF "$(printf '%s\n' "${named[@]}")")
xargs -P $(($(nproc) + 2)) -L 1 bash -c 'part "$@"' - <<-parts || failed=1
	0 $bin/python faults tests/faults
	0 $bin/python sandboxes services/sandbox -m "slow or model"
	5 $bin/python grader services/grader -m "slow or model"
	5 $bin/python learner services/learner -m "slow or model"
	5 $bin/python e2e tests/e2e
	0 $bin/python integration tests --ignore tests/e2e --ignore tests/faults
	5 $bin/python rollout services/rollout tools -m "slow or model"
	5 $bin/python others ${others[*]} -m "slow or model"
	5 .venv-vllm/bin/python vllm services/rollout -m vllm
parts

exec $bin/python tools/make/count.py "$failed" "$out"/*.xml
