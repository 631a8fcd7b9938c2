#!/bin/sh
# SPDX-License-Identifier: MIT
# The integration and fault suites against other servers and another hiredis than the system's: Debian 13's packages,
# unpacked beside, not installed. The mirror is the one that this machine's apt uses. Prints a table; ends with 0 if all
# of it holds. Wants the main build in build/ and a folder for the rest: servers.sh build/servers
set -eu
work=$1
release=trixie
mkdir -p "$work"
work=$(cd "$work" && pwd)
state=$work/apt

say() { printf '%s\n' "$*" >&2; }
die() { say "servers: $*"; exit 1; }

# ---- Debian 13's packages --------------------------------------------------------------------------------------------

# The first Debian archive among apt's own sources, in either of their two formats.
mirror()
{
    cat /etc/apt/sources.list.d/*.sources 2>/dev/null |
        awk 'tolower($1) == "uris:" && $2 ~ /\/debian\/?$/ { print $2; exit }'
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /\/debian\/?$/) { print $i; exit } }'
}

# An apt that knows nothing of what is installed here: it names every library that a package needs.
prepare_apt()
{
    from=$(mirror | head -n 1)
    [ -n "$from" ] || die "no Debian archive among this machine's apt sources"
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/parts"
    : >"$state/status"
    signed="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    printf 'deb %s %s %s main\ndeb-src %s %s %s main\n' "$signed" "$from" $release "$signed" "$from" $release \
        >"$state/sources.list"
    cat >"$state/apt.conf" <<CONF
Dir::Etc::sourcelist "$state/sources.list";
Dir::Etc::sourceparts "$state/parts";
Dir::Etc::preferencesparts "$state/parts";
Dir::State::lists "$state/lists";
Dir::State::status "$state/status";
Dir::Cache "$state/cache";
CONF
    export APT_CONFIG="$state/apt.conf"
    apt-get -q update >&2
}

# unpack PACKAGE: it and all that it needs in $work/PACKAGE/root, and a redis-server in $work/PACKAGE/bin.
unpack()
{
    package=$1
    [ -x "$work/$package/bin/redis-server" ] && return
    rm -rf "$state/cache/archives/"*.deb "${work:?}/$package"
    mkdir -p "$work/$package/root" "$work/$package/bin"
    apt-get -q install -y --no-install-recommends --download-only "$package" >&2
    for file in "$state"/cache/archives/*.deb; do
        dpkg -x "$file" "$work/$package/root"
    done
    root=$work/$package/root
    loader=$(find "$root/lib64" "$root/usr/lib64" "$root/lib" "$root/usr/lib" -name 'ld-linux*.so.*' 2>/dev/null | head -n 1)
    libraries=$(find "$root/usr/lib" "$root/lib" -maxdepth 1 -type d -name '*-linux-gnu*' 2>/dev/null | tr '\n' ':')
    [ -n "$loader" ] || die "$package: no loader was unpacked"
    cat >"$work/$package/bin/redis-server" <<WRAPPER
#!/bin/sh
exec "$loader" --library-path "$libraries" "$root/usr/bin/$package" "\$@"
WRAPPER
    chmod 755 "$work/$package/bin/redis-server"
}

# hiredis from its source package: its binaries want a newer C library than Debian 12's.
build_hiredis()
{
    [ -f "$work/hiredis/lib/pkgconfig/hiredis_ssl.pc" ] && return
    rm -rf "$work/hiredis" "$work/hiredis-source"
    mkdir -p "$work/hiredis-source"
    (cd "$work/hiredis-source" && apt-get -q source --download-only hiredis >&2 &&
        tar -xf hiredis_*.orig.tar.* --strip-components=1 &&
        make -s USE_SSL=1 PREFIX="$work/hiredis" LIBRARY_PATH=lib INCLUDE_PATH=include/hiredis install >&2)
}

# ---- lanes -----------------------------------------------------------------------------------------------------------

table=
failed=0

# lane NAME BUILD: both suites with the redis-server in PATH.
lane()
{
    began=$(date +%s)
    log=$2/meson-logs/testlog.json
    rm -f "$log"
    version=$(redis-server --version | sed 's/^\([A-Za-z]*\).*[ =]v=\([0-9.]*\).*/\1 \2/')
    meson test -C "$2" --no-rebuild --suite integration --suite faults >"$work/$1.log" 2>&1 || :
    counts=$(python3 tests/tally.py "$log") || { failed=1; printf '%s\n' "$counts" >&2; }
    counts=$(printf '%s\n' "$counts" | tail -n 1)
    row=$(printf '%-12s %-16s hiredis %-8s %s (%d s)' "$1" "$version" "$3" "$counts" $(($(date +%s) - began)))
    say "$row"
    table="$table$row
"
}

prepare_apt
unpack redis-server
unpack valkey-server
build_hiredis
hiredis=$(pkg-config --modversion hiredis)
lane system build "$hiredis"
PATH="$work/redis-server/bin:$PATH" lane redis8 build "$hiredis"
PATH="$work/valkey-server/bin:$PATH" lane valkey8 build "$hiredis"

export PKG_CONFIG_PATH="$work/hiredis/lib/pkgconfig" LD_LIBRARY_PATH="$work/hiredis/lib"
[ -f "$work/build/build.ninja" ] || meson setup "$work/build" -Dtls=enabled -Dbenchmarks=false >&2
ninja -C "$work/build" >&2
lane hiredis1 "$work/build" "$(pkg-config --modversion hiredis)"

printf '%s' "$table"
exit $failed
