#!/bin/sh
# SPDX-License-Identifier: MIT
# probes.sh BUILD yes|no: libweir-sync has exactly the probes of docs/probes.md where they are built in, and none
# otherwise; libweir, which decides in memory, has none.
set -u
cd "$(dirname "$0")/../.."
. tests/api/tap.sh
export LC_ALL=C
build=$1
built_in=$2

# probes LIBRARY: "name arguments" of each, once.
probes()
{
    readelf -n "$1" | awk '
        $1 == "Provider:" { provider = $2 }
        $1 == "Name:" && provider == "weir" { name = $2 }
        $1 == "Arguments:" && name { print name, NF - 1; name = "" }' | sort -u
}

# What is documented: the first column, and how many arguments the last one tells of.
documented()
{
    sed -n 's/^| `\([a-z_]*\)` | .* | \(.*\) |$/\1|\2/p' docs/probes.md | awk -F'|' '{ print $1, split($2, parts, ",") }' |
        sort -u
}

same()
{
    [ -s "$1" ] || { echo "nothing is documented"; return 1; }
    diff "$1" "$2"
}

is_library() { readelf -h "$1" | grep "DYN"; }
empty() { [ ! -s "$1" ] || { cat "$1"; return 1; }; }

documented >"$scratch/documented"
probes "$build/sync/libweir-sync.so" >"$scratch/sync"
probes "$build/lib/libweir.so" >"$scratch/weir"

try "there is a libweir-sync" is_library "$build/sync/libweir-sync.so"
try "there is a libweir" is_library "$build/lib/libweir.so"
if [ "$built_in" = yes ]; then
    try "libweir-sync has the probes of docs/probes.md" same "$scratch/documented" "$scratch/sync"
else
    try "libweir-sync has no probes" empty "$scratch/sync"
fi
try "libweir has none" empty "$scratch/weir"
finish
