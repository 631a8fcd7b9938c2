#!/bin/sh
# SPDX-License-Identifier: MIT
# promtool.sh BUILD: Prometheus' own tool reads what a process that shares its limits tells, and the alerts of
# docs/operating.md, and has nothing to say.
set -u
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

CK_VERBOSITY=silent CK_RUN_SUITE=metrics WEIR_METRICS_FILE=$scratch/metrics WEIR_BUILD_DIR=$build \
    "$build/tests/integration-metrics" || { echo "promtool: the metrics' own test failed"; exit 1; }
families=$(grep -c '^# TYPE' "$scratch/metrics")
promtool check metrics <"$scratch/metrics" >"$scratch/said" 2>&1
status=$?
cat "$scratch/said"
[ "$status" = 0 ] && [ ! -s "$scratch/said" ] || { echo "promtool: status $status"; exit 1; }
awk '$0 == "```" { on = 0 } on { print } $0 == "```yaml" { on = 1 }' docs/operating.md >"$scratch/alerts.yaml"
[ -s "$scratch/alerts.yaml" ] && promtool check rules "$scratch/alerts.yaml" || exit 1
echo "promtool check metrics: nothing to say about $families families"
