#!/bin/sh
# Installs cofferdam below ~/.local, without root, and asks it whether this machine can hold the cells.
#
#   sh install.sh [--from DIRECTORY|URL] [--prefix DIRECTORY]
#   sh install.sh --uninstall [--prefix DIRECTORY]
#
# Without --from it installs from the directory in which it lies. The archive's sum is compared with SHA256SUMS of the
# same place before anything is unpacked.
set -eu
umask 022

fail() {
    echo "install: $1" >&2
    [ -z "${2:-}" ] || echo "hint: $2" >&2
    exit 1
}

# Brings a file of the release into $work.
bring() {
    case $from in
    https://*) curl --fail --silent --show-error --location --proto '=https' --tlsv1.2 --output "$work/$1" "$from/$1" ||
        fail "$from/$1 cannot be had" ;;
    *://*) fail "$from is no https address" ;;
    *) cp "$from/$1" "$work/$1" || fail "$from/$1 cannot be read" "--from names the place of a release's files" ;;
    esac
}

# Removes what an installation wrote down, and the directories that are empty then.
uninstall() {
    list=$prefix/share/cofferdam/installed
    [ -f "$list" ] || fail "nothing was installed below $prefix by this script"
    while IFS= read -r file; do rm -f "$prefix/$file"; done <"$list"
    rm -f "$list"
    for directory in share/cofferdam/systemd/system share/cofferdam/systemd/user share/cofferdam/systemd share/cofferdam share/doc/cofferdam/docs share/doc/cofferdam share/doc share/man/man1 share/man \
        share/bash-completion/completions share/bash-completion share/zsh/site-functions share/zsh \
        share/fish/vendor_completions.d share/fish share bin; do
        rmdir "$prefix/$directory" 2>/dev/null || true
    done
    rmdir "$prefix" 2>/dev/null || true
}

from=$(cd "$(dirname "$0")" && pwd)
prefix=${HOME:?}/.local
action=install
usage='sh install.sh [--from DIRECTORY|URL] [--prefix DIRECTORY] [--uninstall]'
while [ $# -gt 0 ]; do
    case $1 in
    --from | --prefix)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
        --from) from=${2%/} ;;
        --prefix) prefix=$2 ;;
        esac
        shift 2
        ;;
    --uninstall)
        action=uninstall
        shift
        ;;
    -h | --help)
        echo "usage: $usage"
        exit 0
        ;;
    *) fail "unknown argument $1" "$usage" ;;
    esac
done
case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
if [ "$action" = uninstall ]; then
    uninstall
    echo "cofferdam was removed from $prefix"
    # Layers may have changes that were not applied yet.
    for left in "${XDG_CONFIG_HOME:-$HOME/.config}/cofferdam" "${XDG_STATE_HOME:-$HOME/.local/state}/cofferdam" \
        "${XDG_CACHE_HOME:-$HOME/.cache}/cofferdam-caches"; do
        [ ! -e "$left" ] || echo "hint: $left is yours and was left"
    done
    exit 0
fi

[ "$(uname -s)" = Linux ] || fail "cofferdam needs Linux" "in a Linux virtual machine it runs as on any other machine"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bring SHA256SUMS
# One line, whose file has no directory in its name.
line=$(grep -E "^[0-9a-f]{64}  cofferdam-[0-9][0-9A-Za-z.+-]*-$(uname -m)-linux\.tar\.gz\$" "$work/SHA256SUMS") ||
    fail "the release has no archive for $(uname -m)"
[ "$(printf '%s\n' "$line" | wc -l)" -eq 1 ] || fail "SHA256SUMS has more than one archive for $(uname -m)"
archive=${line#*  }
bring "$archive"
(cd "$work" && printf '%s\n' "$line" | sha256sum --check --status) ||
    fail "$archive is not the file whose sum SHA256SUMS has" "download both again; if that does not help, do not use them"

name=${archive%.tar.gz}
tar -xzf "$work/$archive" -C "$work"
mkdir -p "$prefix/share/cofferdam"
(cd "$work/$name" && find . -type f | sed 's|^\./||' | LC_ALL=C sort) >"$work/installed"
while IFS= read -r file; do
    mkdir -p "$prefix/$(dirname "$file")"
    # By a rename: a server that runs keeps the program that it was started from.
    cp -p "$work/$name/$file" "$prefix/$file.new"
    mv "$prefix/$file.new" "$prefix/$file"
done <"$work/installed"
list=$prefix/share/cofferdam/installed
if [ -f "$list" ]; then
    # Files of an earlier version that this one does not have.
    grep -vxFf "$work/installed" "$list" | while IFS= read -r file; do rm -f "$prefix/$file"; done
fi
cp "$work/installed" "$list"

echo "cofferdam is installed as $prefix/bin/cofferdam"
case :$PATH: in
*:$prefix/bin:*) ;;
*) echo "hint: add it to PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
command -v bash >/dev/null || echo "hint: cells need bash"
command -v bc >/dev/null || echo "hint: the calculator needs bc"
echo
"$prefix/bin/cofferdam" doctor ||
    echo "hint: install what doctor names; cofferdam itself is complete"
