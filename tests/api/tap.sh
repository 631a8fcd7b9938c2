# SPDX-License-Identifier: MIT
# TAP for the tests that are shell scripts; sourced. Where a case fails, what it said goes to standard error.
cases=0
failed=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# try NAME COMMAND...: one case.
try()
{
    cases=$((cases + 1))
    name=$1
    shift
    if "$@" >"$scratch/output" 2>&1; then
        echo "ok $cases - $name"
    else
        failed=$((failed + 1))
        echo "not ok $cases - $name"
        sed 's/^/# /' "$scratch/output" >&2
    fi
}

finish()
{
    echo "1..$cases"
    [ "$failed" = 0 ]
}
