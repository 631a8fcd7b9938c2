#!/bin/sh
# SPDX-License-Identifier: MIT
# fuzz.sh BUILD SECONDS NAME: one fuzz target, from the corpus in the tree; what it finds beside stays in the build. Ends
# with a failure where it found a fault, and shows the input. A short run tries the same each time, so that a check
# says something of the change in hand; longer ones look further, elsewhere each time.
set -eu
folder=$1/fuzz-$3
mkdir -p "$folder/found"
seed=0
[ "$2" -gt 60 ] || seed=1
"$1/tests/fuzz/fuzz-$3" -max_total_time="$2" -seed="$seed" -timeout=10 -max_len=2048 -print_final_stats=1 \
    -artifact_prefix="$folder/" "$folder/found" "$(dirname "$0")/corpus/$3" >"$folder/log" 2>&1 || {
    tail -n 40 "$folder/log"
    for input in "$folder"/crash-* "$folder"/leak-* "$folder"/timeout-* "$folder"/oom-*; do
        [ ! -f "$input" ] || { echo "$3: $input"; od -c "$input" | head -n 20; }
    done
    exit 1
}
sed -n "s/^stat::number_of_executed_units: */$3, inputs tried: /p" "$folder/log"
