#!/bin/sh
# SPDX-License-Identifier: MIT
# consumers.sh BUILD: a stranger's project, in C and C++, that finds weir by CMake, by Meson or by pkg-config alone, in
# a DESTDIR, linked to the shared libraries, to the static ones, or built along as a Meson subproject.
set -u
cd "$(dirname "$0")/../.."
. tests/api/tap.sh
build=$1
source=$PWD
dest=$scratch/dest
programs='core core++ shared shared++'

# project FOLDER: the stranger's sources.
project()
{
    mkdir -p "$1"
    cp tests/api/consumer/* "$1"
    for name in core shared; do
        cp tests/api/$name.c "$1/$name.c"
        cp tests/api/$name.c "$1/$name.cpp"
    done
}

# run_all FOLDER [LIBRARY PATH]: each program exits with 0.
run_all()
{
    for program in $programs; do
        LD_LIBRARY_PATH=${2:-} "$1/$program" || { echo "$program: $?"; return 1; }
    done
}

# needed FOLDER: what the programs ask the loader for.
needed() { for program in $programs; do readelf -d "$1/$program" | grep NEEDED; done; }

shared_only() { needed "$1" | grep -q 'libweir-sync\.so\.0' && needed "$1" | grep -q 'libweir\.so\.0'; }
static_only() { ! needed "$1" | grep libweir; }

# by_cmake FOLDER PREFIX [OPTIONS]
by_cmake()
{
    folder=$1 prefix=$2
    shift 2
    PKG_CONFIG_PATH=$prefix/pkgconfig cmake -S "$scratch/project" -B "$folder" -G Ninja -Wno-dev --log-level=WARNING \
        -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS='-Wall -Wextra -Werror' \
        -DCMAKE_CXX_FLAGS='-Wall -Wextra -Werror' "$@" && cmake --build "$folder"
}

cmake_shared() { by_cmake "$scratch/cmake" "$prefix" && run_all "$scratch/cmake" && shared_only "$scratch/cmake"; }

cmake_static()
{
    by_cmake "$scratch/cmake-static" "$prefix" -Dweir_USE_STATIC_LIBS=ON && run_all "$scratch/cmake-static" &&
        static_only "$scratch/cmake-static"
}

# The same files at another place: nothing in them names the first.
cmake_moved()
{
    mkdir "$scratch/moved" && cp -R "$prefix" "$scratch/moved/here" || return 1
    ! grep -rF "$scratch" "$scratch/moved/here/lib"*/ --include='*.cmake' || return 1
    by_cmake "$scratch/cmake-moved" "$scratch/moved/here" && run_all "$scratch/cmake-moved"
}

cmake_says_no()
{
    mkdir "$scratch/refuse" || return 1
    cat >"$scratch/refuse/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.18)
project(refuse C)
foreach(asked "0.1" "0.2" "1.0" "0.1;COMPONENTS;nothing")
  unset(weir_DIR CACHE)
  find_package(weir ${asked} QUIET)
  if(weir_FOUND)
    list(APPEND found "${asked}")
  endif()
endforeach()
message("found: ${found}.")
CMAKE
    cmake -S "$scratch/refuse" -B "$scratch/refuse/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >"$scratch/said" 2>&1
    cat "$scratch/said"
    grep -q '^found: 0\.1\.$' "$scratch/said"
}

meson_installed()
{
    PKG_CONFIG_PATH=$pkgconfig PKG_CONFIG_SYSROOT_DIR=$dest meson setup "$scratch/meson" "$scratch/project" &&
        ninja -C "$scratch/meson" && run_all "$scratch/meson" "$libdir" && shared_only "$scratch/meson"
}

# Nothing but the libraries is built, none of it needs Check, and no Redis is looked for.
meson_subproject()
{
    project "$scratch/parent" && mkdir "$scratch/parent/subprojects" &&
        ln -s "$source" "$scratch/parent/subprojects/weir" || return 1
    PKG_CONFIG_LIBDIR=$(only_foreign_packages) meson setup "$scratch/subproject" "$scratch/parent" \
        -Dbuildtype=plain || return 1
    ! grep -E 'tests/unit|benchmarks/' "$scratch/subproject/build.ninja" || return 1
    ninja -C "$scratch/subproject" core core++ shared shared++ && run_all "$scratch/subproject"
}

# A pkg-config path without a weir that may be installed on this machine.
only_foreign_packages()
{
    mkdir -p "$scratch/packages"
    for module in libuv hiredis hiredis_ssl openssl libssl libcrypto; do
        at=$(pkg-config --variable=pcfiledir $module 2>/dev/null) && cp "$at/$module.pc" "$scratch/packages"
    done
    echo "$scratch/packages"
}

# An installation that has no shared library of ours.
pkg_config_static()
{
    mkdir "$scratch/static" && cp -R "$prefix" "$scratch/static/here" || return 1
    find "$scratch/static" -name 'libweir*.so*' -exec rm {} +
    packages=$(find "$scratch/static" -type d -name pkgconfig)
    pc() { PKG_CONFIG_PATH=$packages pkg-config --define-variable=prefix="$scratch/static/here" "$@"; }
    ${CC:-cc} -std=c11 tests/api/core.c -o "$scratch/static/core" $(pc --static --cflags --libs libweir) &&
        ${CXX:-c++} -std=c++17 -x c++ tests/api/core.c -x none -o "$scratch/static/core++" \
            $(pc --static --cflags --libs libweir) &&
        ${CC:-cc} -std=c11 tests/api/shared.c -o "$scratch/static/shared" $(pc --static --cflags --libs libweir-sync) &&
        ${CXX:-c++} -std=c++17 -x c++ tests/api/shared.c -x none -o "$scratch/static/shared++" \
            $(pc --static --cflags --libs libweir-sync) &&
        run_all "$scratch/static" && static_only "$scratch/static"
}

try "meson install into a DESTDIR" env DESTDIR="$dest" meson install -C "$build" --no-rebuild --quiet
pkgconfig=$(find "$dest" -type d -name pkgconfig)
libdir=${pkgconfig%/pkgconfig}
prefix=$(cd "$(find "$dest" -type d -path '*/include')/.." && pwd)
project "$scratch/project"
try "CMake: find_package(weir), C and C++" cmake_shared
try "CMake: an installation that was moved" cmake_moved
try "CMake: versions and components that are not there" cmake_says_no
try "Meson: dependency('libweir-sync'), C and C++" meson_installed
try "Meson: a subproject, C and C++" meson_subproject
if [ -e "$libdir/libweir.a" ]; then
    try "CMake: static libraries" cmake_static
    try "pkg-config --static" pkg_config_static
else
    skip "CMake: static libraries" "this build was set up without them (default_library)"
    skip "pkg-config --static" "this build was set up without them (default_library)"
fi
finish
