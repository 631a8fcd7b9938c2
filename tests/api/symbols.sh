#!/bin/sh
# SPDX-License-Identifier: MIT
# symbols.sh BUILD: each library shows exactly the functions that its headers mark WEIR_API, and libweir besides them
# exactly the private seam, under a version node of its own.
set -u
cd "$(dirname "$0")/../.."
. tests/api/tap.sh
export LC_ALL=C
build=$1

# Names declared with WEIR_API in these headers.
declared()
{
    cat "$@" | tr '\n' ' ' | grep -oE 'WEIR_API [^;(]*[ *](weir_[a-z0-9_]+)[(;]' | sed -E 's/.*[ *](weir_[a-z0-9_]+)[(;]$/\1/' | sort
}

# Functions of the seam.
seam()
{
    grep -oE '\bweir__seam_[a-z0-9_]+\(' lib/seam.h | tr -d '(' | sort -u
}

# exported LIBRARY: "name node" of every symbol that is defined.
exported()
{
    nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@+/, " ", $3); print $3 }' | sort
}

# same EXPECTED ACTUAL
same()
{
    [ -s "$1" ] || { echo "nothing is declared"; return 1; }
    diff "$1" "$2"
}

declared $(ls include/weir/*.h | grep -v /sync.h) >"$scratch/weir.h"
declared include/weir/sync.h >"$scratch/sync.h"
seam >"$scratch/seam.h"
exported "$build/lib/libweir.so" >"$scratch/weir.so"
exported "$build/sync/libweir-sync.so" >"$scratch/sync.so"
grep -v ' WEIR_PRIVATE$' "$scratch/weir.so" | cut -d ' ' -f 1 >"$scratch/weir.public"
grep ' WEIR_PRIVATE$' "$scratch/weir.so" | cut -d ' ' -f 1 >"$scratch/weir.private"
cut -d ' ' -f 1 "$scratch/sync.so" >"$scratch/sync.public"

try "libweir exports the functions of its public headers" same "$scratch/weir.h" "$scratch/weir.public"
try "libweir exports the seam as WEIR_PRIVATE" same "$scratch/seam.h" "$scratch/weir.private"
try "libweir-sync exports the functions of weir/sync.h" same "$scratch/sync.h" "$scratch/sync.public"
try "every exported symbol has a version" awk '{ if (NF != 2) { print; bad = 1 } } END { exit bad }' \
    "$scratch/weir.so" "$scratch/sync.so"
finish
