#!/bin/sh
# SPDX-License-Identifier: MIT
# manual.sh BUILD: the manual's pages against the headers, and as they are installed where scdoc made them.
set -u
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
manuals=
if [ -f "$1/docs/weir.3" ]; then
    DESTDIR=$scratch meson install -C "$1" --no-rebuild --quiet >&2 || exit 1
    manuals=$(find "$scratch" -type d -path '*/man')
fi
python3 tests/api/manual.py "$1" $manuals
