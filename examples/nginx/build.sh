#!/bin/bash
# SPDX-License-Identifier: MIT
# build.sh FOLDER [BUILD]: makes FOLDER/ngx_http_weir_module.so for Debian's nginx, from what the package nginx-dev
# brings. BUILD: a build folder of this tree, whose libraries are used as they are; without it the installed ones, by
# pkg-config.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
source=/usr/share/nginx/src
[ -f $source/conf_flags ] || { echo "build.sh: install nginx-dev first" >&2; exit 1; }

if [ -n "${2:-}" ]; then
    build=$(cd "$2" && pwd)
    export WEIR_CFLAGS="-I$here/../../include"
    export WEIR_LIBS="-L$build/lib -L$build/sync -lweir-sync -lweir -Wl,-rpath,$build/lib:$build/sync"
fi

rm -rf "$out/src" "$out/objs"
cp -r $source "$out/src" # configure writes beside itself
cd "$out/src"
. ./conf_flags
{
    ./configure "${NGX_CONF_FLAGS[@]}" --with-cc-opt="-fPIC ${WEIR_CC_OPT:--O2}" --add-dynamic-module="$here" \
        --builddir="$out/objs"
    make -f "$out/objs/Makefile" modules
} >"$out/build.log" 2>&1 || { tail -n 40 "$out/build.log" >&2; exit 1; }
cp "$out/objs/ngx_http_weir_module.so" "$out/"
rm -rf "$out/src"
