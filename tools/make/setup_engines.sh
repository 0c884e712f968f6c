#!/usr/bin/env bash
# Installs what sandboxes are tested over beside the kernel's own namespaces; tests skip what is not there. For CI: it
# changes the machine, so it asks for root and Debian and otherwise says what it leaves out.
set -euo pipefail
declare -A programs=([bubblewrap]=bwrap [busybox-static]=busybox [docker.io]=dockerd [kubernetes-client]=kubectl
	[prometheus]=promtool [runsc]=runsc)
missing=()
for package in "${!programs[@]}"; do command -v "${programs[$package]}" >/dev/null || missing+=("$package"); done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "not installed, their tests are skipped: ${missing[*]} (needs root and apt-get)"
	exit 0
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
log=$(mktemp)
# No package starts a daemon of its own: the tests start what they need.
policy=/usr/sbin/policy-rc.d
[ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && trap 'rm -f $policy' EXIT; }
{ apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 ||
	{ tail -n 20 "$log" >&2; echo "could not be installed, their tests are skipped: ${missing[*]}" >&2; }
