#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the exhaustive models of an entry's life (entry.pml) and of a lease (lease.pml) through Spin: first as it is, then
# with one guard taken out at a time, which Spin must notice. TAP on standard output. Needs spin and a C compiler.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
n=0
failed=0
model=entry.pml

# explore EXPECTED NAME DEFINES...: EXPECTED is the number of errors, 0 or 1
explore() {
    expected=$1
    name=$2
    shift 2
    n=$((n + 1))
    cp "$here/$model" . &&
        spin "$@" -a "$model" >spin.log 2>&1 &&
        ${CC:-cc} -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=4096 -o pan pan.c >>spin.log 2>&1 &&
        ./pan -m200000 >pan.log 2>&1
    if grep -q "errors: $expected\$" pan.log && ! grep -qi "truncated\|out of memory\|max search depth too small" pan.log
    then
        echo "ok $n - $name ($(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log) states)"
    else
        failed=$((failed + 1))
        echo "not ok $n - $name"
        sed 's/^/# /' spin.log pan.log
    fi
    rm -f pan pan.log "$model.trail"
}

explore 0 "takes, evictions and collections lose and mint nothing"
explore 0 "takes at several times, above the cap" -DTICKS=4 -DROUNDS=0 -DEVICTIONS=0
explore 0 "two ways: no key is made twice" -DWAYS=2 -DLOOK_ONLY -DTICKS=0 -DROUNDS=0
explore 0 "three takers on two ways: no key is made twice" -DWAYS=2 -DTAKERS=3 -DTAKES=1 -DLOOK_ONLY -DTICKS=0 -DROUNDS=0
explore 1 "found: the pin is not looked at under the lock" -DBUG=1 -DTICKS=2 -DROUNDS=2 -DEVICTIONS=1
explore 1 "found: a claim does not step the version" -DBUG=2 -DWAYS=2 -DLOOK_ONLY -DTICKS=0 -DROUNDS=0
explore 1 "found: what is dirty is evicted" -DBUG=3
explore 1 "found: the clip at the cap writes f alone" -DBUG=4 -DTICKS=4 -DROUNDS=0 -DEVICTIONS=0
explore 1 "found: spending that no flag tells of is evicted" -DBUG=5
model=lease.pml
explore 0 "a lease is spent or taken back, where a step is one instruction" -DREFUSED -DTOKENS=5 -DSTEPS=4 -DTRIES=3
explore 0 "a lease is spent or taken back, where a step is several" -DPORTABLE -DREFUSED -DTOKENS=5 -DSTEPS=4 -DTRIES=3
explore 0 "a lease is spent or taken back, where a step is now one, now several" -DMIXED -DREFUSED -DTOKENS=5 -DSTEPS=4
explore 1 "found: the owner does not say that it is at it" -DPORTABLE -DBUG=1
explore 1 "found: no barrier" -DBUG=2
explore 1 "found: no barrier, where a step is several" -DPORTABLE -DBUG=2
explore 1 "found: no look at what the owner has stored meanwhile" -DBUG=3
explore 1 "found: no look, where a step is several" -DPORTABLE -DBUG=3
explore 1 "found: what could not be taken is put back beside one instruction" -DMIXED -DBUG=4
explore 1 "found: the same, where the barrier is refused" -DREFUSED -DBUG=4
explore 1 "found: the owner takes what could not be taken for spent" -DREFUSED -DBUG=5
echo "1..$n"
[ "$failed" -eq 0 ]
