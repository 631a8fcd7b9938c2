#!/bin/sh
# SPDX-License-Identifier: MIT
# package.sh BUILD: from what is committed a release tarball, from that Debian packages, and with nothing but those in a
# clean system the README's program. Needs root and this machine's own apt sources; leaves nothing behind. Minutes.
set -u
cd "$(dirname "$0")/.."
. tests/api/tap.sh
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
build=$1
system=$scratch/system
packages='libweir0 libweir-sync0 libweir-dev weir-tools'
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

# A tarball of the last commit, unpacked: nothing of this folder but what is in it takes part from here on.
release()
{
    dirty=$(git status --porcelain --untracked-files=no) && [ -z "$dirty" ] ||
        echo "not committed, so not in the release: $dirty"
    meson dist -C "$build" --no-tests --formats gztar --allow-dirty || return 1
    version=$(meson introspect "$build" --projectinfo | sed 's/.*"version": "\([^"]*\)".*/\1/')
    tar -xf "$build/meson-dist/weir-$version.tar.gz" -C "$scratch" && source=$scratch/weir-$version
}

# The unit tests run in it. Symbols that are not in debian/*.symbols, or are there and nowhere else, are an error.
build_packages()
{
    (cd "$source" && DEB_BUILD_OPTIONS=parallel=2 dpkg-buildpackage -us -uc -b) || return 1
    for package in $packages; do ls "$scratch/${package}"_*.deb || return 1; done
}

# No bug of Debian's is closed by a package that is not Debian's.
lint()
{
    lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$scratch"/weir_*.changes
}

# The archive that this machine installs from, without a word about it in what is printed.
bootstrap()
{
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    archive=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
        awk -v "release=$release" '$1 == release { print $2; exit }')
    [ -n "$archive" ] || { echo "apt knows no archive of $release"; return 1; }
    debootstrap --variant=minbase "$release" "$system" "$archive" >"$scratch/bootstrap.log" 2>&1 ||
        { echo "debootstrap failed"; return 1; }
    cp /etc/apt/apt.conf.d/* "$system/etc/apt/apt.conf.d/"
    printf '#!/bin/sh\nexit 101\n' >"$system/usr/sbin/policy-rc.d"
    chmod 755 "$system/usr/sbin/policy-rc.d"
    # a minimal system leaves manuals out; this one is here to read them
    rm -f "$system/etc/dpkg/dpkg.cfg.d/"*docker* "$system/etc/apt/apt.conf.d/docker-clean"
}

inside() { chroot "$system" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root "$@"; }

# With all that they ask for, a compiler, and a pager for the manual.
install_packages()
{
    mkdir "$system/packages" && for package in $packages; do
        cp "$scratch/${package}"_*.deb "$system/packages" || return 1
    done
    inside apt-get -q update >"$scratch/apt.log" 2>&1 || { echo "apt-get update failed"; return 1; }
    inside sh -c 'DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
        /packages/*.deb g++ pkg-config man-db' >"$scratch/apt.log" 2>&1 || { tail -n 5 "$scratch/apt.log"; return 1; }
    inside dpkg -l $packages | grep '^ii'
    [ "$(inside dpkg -l $packages | grep -c '^ii')" = 4 ]
}

readme_program()
{
    fenced c 1 >"$system/root/readme.c"
    fenced text 1 >"$scratch/expected"
    [ -s "$scratch/expected" ] || return 1
    inside sh -c 'cd && cc -std=c11 -Wall -Wextra -Werror readme.c $(pkg-config --cflags --libs libweir) && ./a.out' \
        >"$scratch/said" || { cat "$scratch/said"; return 1; }
    diff "$scratch/expected" "$scratch/said"
}

sharing_program()
{
    cp tests/api/shared.c "$system/root/" && inside sh -c 'cd && c++ -std=c++17 -x c++ shared.c -x none \
        $(pkg-config --cflags --libs libweir-sync) && ./a.out'
}

command_runs()
{
    [ "$(inside weir --version)" = "weir $version" ] || { inside weir --version; return 1; }
    inside weir simulate --seconds 2 --json
}

# page [SECTION] NAME WORDS: the page is there, and says so.
page() { inside sh -c 'MANPAGER=cat MANWIDTH=200 man "$@"' sh $1 | grep -F "$2"; }

manual()
{
    page weir "WEIR DEMO" && page "7 weir" "A weir is a low dam" && page "3 weir" "the functions of libweir" &&
        page "weir_take_at" "weir_take, weir_take_at" && page "weir_sync_close" "limits shared through Redis"
}

# Purged, they leave nothing.
removed()
{
    inside sh -c "apt-get -q purge -y $packages" >"$scratch/apt.log" 2>&1 || { tail -n 5 "$scratch/apt.log"; return 1; }
    ! find "$system/usr" "$system/etc" -path '*weir*' | grep .
}

try "a release tarball of the last commit" release
try "dpkg-buildpackage, the unit tests within" build_packages
try "lintian says nothing" lint
try "a clean system" bootstrap
try "the packages install with what they ask for" install_packages
try "the README's program prints what the README says" readme_program
try "a C++ program that shares a limit" sharing_program
try "the command" command_runs
try "the manual" manual
try "removed without a trace" removed
finish
