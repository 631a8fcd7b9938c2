#!/bin/sh
# SPDX-License-Identifier: MIT
# install.sh BUILD: what a packager gets (meson install into a DESTDIR) and what a user does with it: programs built by
# pkg-config alone, the README's among them.
set -u
cd "$(dirname "$0")/../.."
. tests/api/tap.sh
build=$1
dest=$scratch/dest
warnings='-Wall -Wextra -Werror'

installed_headers() { (cd "$dest" && find . -path '*/include/*' -type f | sed 's|.*/include/||' | sort); }
public_headers() { (cd include && find weir -name '*.h' | sort); }

headers_installed()
{
    installed_headers >"$scratch/installed"
    public_headers >"$scratch/public"
    diff "$scratch/public" "$scratch/installed"
}

# pc ARGUMENTS...: pkg-config that sees the installation besides the system's own.
pc() { PKG_CONFIG_PATH=$pkgconfig PKG_CONFIG_SYSROOT_DIR=$dest pkg-config "$@"; }

# compile COMPILER SOURCE MODULE OUTPUT [FLAGS]
compile()
{
    compiler=$1 source=$2 module=$3 output=$4
    shift 4
    $compiler "$@" $warnings "$source" -o "$output" $(pc --cflags --libs "$module")
}

with_libraries() { LD_LIBRARY_PATH=$libdir "$@"; }

build_and_run() { compile "$@" && with_libraries "$4"; }

# needs PROGRAM: the shared libraries that it and ours ask for.
core_needs_neither_libuv_nor_hiredis()
{
    readelf -d "$scratch/core" "$libdir/libweir.so" | grep NEEDED
    ! readelf -d "$scratch/core" "$libdir/libweir.so" | grep -E 'NEEDED.*(libuv|hiredis|weir-sync)'
}

sync_hides_its_dependencies()
{
    libs=$(pc --libs libweir-sync)
    echo "$libs"
    case $libs in
    *-luv* | *-lhiredis*) return 1 ;;
    *-lweir*) ;;
    *) return 1 ;;
    esac
    case $(pc --libs --static libweir-sync) in
    *-lhiredis*-luv* | *-luv*-lhiredis*) ;;
    *) return 1 ;;
    esac
}

# The loader's name of a library has its major version, and leads to the file that has the whole one.
sonames()
{
    version=$(pc --modversion libweir)
    for library in libweir libweir-sync; do
        soname=$(readelf -d "$libdir/$library.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
        echo "$library: $soname, $(readlink "$libdir/$soname")"
        [ "$soname" = "$library.so.${version%%.*}" ] && [ "$(readlink "$libdir/$soname")" = "$library.so.$version" ] ||
            return 1
    done
}

versions_agree()
{
    cat >"$scratch/version.c" <<'C'
#include <stdio.h>
#include <weir/weir.h>
int main(void)
{
    printf("%d.%d.%d %s\n", WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH, weir_version());
    return 0;
}
C
    version=$(pc --modversion libweir)
    compile "${CC:-cc}" "$scratch/version.c" libweir "$scratch/version" || return 1
    said=$(with_libraries "$scratch/version")
    echo "libweir.pc $version, libweir-sync.pc $(pc --modversion libweir-sync), header and library $said"
    [ "$said" = "$version $version" ] && [ "$(pc --modversion libweir-sync)" = "$version" ]
}

readme_program_prints_what_it_says()
{
    fenced c 1 >"$scratch/readme.c"
    fenced text 1 >"$scratch/readme.expected"
    [ -s "$scratch/readme.c" ] && [ -s "$scratch/readme.expected" ] || return 1
    compile "${CC:-cc}" "$scratch/readme.c" libweir "$scratch/readme" -std=c11 || return 1
    for run in 1 2 3; do # half a second between two takes shows in what it says of the wait
        with_libraries "$scratch/readme" >"$scratch/readme.output" || return 1
        diff "$scratch/readme.expected" "$scratch/readme.output" && return
    done
    return 1
}

# The same program, changed as the README says. It needs a Redis to run.
readme_program_shares()
{
    fenced c 2 >"$scratch/sharing"
    [ -s "$scratch/sharing" ] || return 1
    {
        echo '#include <weir/sync.h>'
        fenced c 1 | awk -v "block=$scratch/sharing" '
            /WEIR_LOCAL/ { next }
            /for \(int i/ { while ((getline line < block) > 0) print line }
            { print }'
    } >"$scratch/sharing.c"
    compile "${CC:-cc}" "$scratch/sharing.c" libweir-sync "$scratch/sharing" -std=c11
}

# The third block, called for a client that may ask three times.
readme_http()
{
    fenced c 3 >"$scratch/may_pass.h"
    grep -q may_pass "$scratch/may_pass.h" || return 1
    cat >"$scratch/may_pass.c" <<'C'
#include <netinet/in.h>
#include <string.h>
#include "may_pass.h"
int main(void)
{
    struct sockaddr_in client = {.sin_family = AF_INET};
    struct weir_policy policy = WEIR_POLICY_INIT;
    char fields[WEIR_HTTP_HEADERS_MAX];
    struct weir *limiter;
    weir_policy_id api;
    policy.name = "api";
    policy.limit = 1;
    policy.per_ns = UINT64_C(60000000000);
    policy.mode = WEIR_LOCAL;
    if (weir_open(&limiter, NULL) || weir_policy_add(limiter, &policy, &api))
        return 1;
    if (may_pass(limiter, api, (struct sockaddr *)&client, fields) != 200)
        return 2;
    if (may_pass(limiter, api, (struct sockaddr *)&client, fields) != 429 || !strstr(fields, "Retry-After: 60\r\n"))
        return 3;
    weir_close(limiter);
    return 0;
}
C
    build_and_run "${CC:-cc}" "$scratch/may_pass.c" libweir "$scratch/may_pass" -std=c11
}

try "meson install into a DESTDIR" env DESTDIR="$dest" meson install -C "$build" --no-rebuild --quiet
pkgconfig=$(find "$dest" -type d -name pkgconfig)
libdir=${pkgconfig%/pkgconfig}
try "the public headers and no other are installed" headers_installed
try "libweir-sync.pc keeps libuv and hiredis private" sync_hides_its_dependencies
try "sonames" sonames
try "versions agree" versions_agree
try "a C11 program of the core" build_and_run "${CC:-cc}" tests/api/core.c libweir "$scratch/core" -std=c11
try "a C++17 program of the core" build_and_run "${CXX:-c++}" tests/api/core.c libweir "$scratch/core++" \
    -x c++ -std=c++17
try "the core needs neither libuv nor hiredis" core_needs_neither_libuv_nor_hiredis
try "a C11 program that shares" build_and_run "${CC:-cc}" tests/api/shared.c libweir-sync "$scratch/shared" -std=c11
try "a C++17 program that shares" build_and_run "${CXX:-c++}" tests/api/shared.c libweir-sync "$scratch/shared++" \
    -x c++ -std=c++17
try "the README's program prints what the README says" readme_program_prints_what_it_says
try "the README's program shares as the README says" readme_program_shares
try "the README's function for HTTP" readme_http
finish
