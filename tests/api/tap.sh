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
    case_name=$1
    shift
    if "$@" >"$scratch/output" 2>&1; then
        echo "ok $cases - $case_name"
    else
        failed=$((failed + 1))
        echo "not ok $cases - $case_name"
        sed 's/^/# /' "$scratch/output" >&2
    fi
}

# skip NAME REASON: a case that can't be asked for here.
skip()
{
    cases=$((cases + 1))
    echo "ok $cases - $1 # SKIP $2"
}

# fenced LANGUAGE N: the README's n-th block in that language.
fenced()
{
    awk -v "open=\`\`\`$1" -v "n=$2" '$0 == "```" && on { exit } on { print } $0 == open { on = ++seen == n }' README.md
}

finish()
{
    echo "1..$cases"
    [ "$failed" = 0 ]
}
