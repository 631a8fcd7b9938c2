#!/bin/sh
# SPDX-License-Identifier: MIT
# Every header compiles alone and twice: the public ones as strict C11 and C++17, without a macro that the build sets;
# the private ones as C11 with the build's. CC and CXX choose the compilers.
set -u
cd "$(dirname "$0")/../.."
. tests/api/tap.sh

warnings='-Wall -Wextra -Werror -Wshadow'

# alone HEADER COMPILER...
alone()
{
    header=$1
    shift
    printf '#include <%s>\n#include <%s>\nint weir_test_unit;\n' "$header" "$header" | "$@" -fsyntax-only -
}

for path in include/weir/*.h; do
    header=${path#include/}
    try "$header as C11" alone "$header" ${CC:-cc} -x c -std=c11 -pedantic-errors $warnings -Iinclude
    try "$header as C++17" alone "$header" ${CXX:-c++} -x c++ -std=c++17 -pedantic-errors $warnings -Iinclude
done

private=$(pkg-config --cflags libuv hiredis)
for header in lib/*.h sync/*.h; do
    [ -e "$header" ] || continue
    try "$header as C11" alone "$header" ${CC:-cc} -x c -std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE \
        $warnings -Iinclude -I. $private
done
finish
