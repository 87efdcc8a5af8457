# Fetches one address in a cell that reaches its host alone, and prints what came. Written for cofferdam.
# Ends with 3 if there is nothing, 5 for a failure, 6 if it is too long, 7 if the server sends elsewhere.
umask 077
LC_ALL=C
BODY=/tmp/body SAID=/tmp/said
: >"$BODY" && : >"$SAID" || exit 125

# A file that grows beyond its limit ends the program that writes it, whatever a server said of its length.
bounded() {
    trap '' XFSZ
    ulimit -f "$((COFFERDAM_BYTES / 1024 + 1))"
}

fetches_https() {
    local told code=0
    command -v curl >/dev/null || { echo "the host has no curl" >&2; return 5; }
    bounded
    told=$(curl -q -sS --globoff --noproxy '*' --proto =https --max-redirs 0 --connect-timeout "$COFFERDAM_SECONDS" \
        --max-time "$COFFERDAM_SECONDS" --max-filesize "$COFFERDAM_BYTES" -A "$COFFERDAM_AGENT" -o "$BODY" \
        -w '%{http_code} %{redirect_url}' --url "$COFFERDAM_URL") || code=$?
    # What the program says is no reason where it ended for the length alone.
    [[ $code != 63 && $code != 23 && $(stat -c %s "$BODY") -le $COFFERDAM_BYTES ]] || return 6
    ((code == 0)) || return 5
    case $told in
        2*) return 0 ;;
        3*) printf '%s' "${told#* }" >"$SAID"; return 7 ;;
        *) echo "HTTP error: ${told%% *}" >&2; return 5 ;;
    esac
}

fetches_git() {
    local code=0 mode kind object rest size
    command -v git >/dev/null || { echo "the host has no git" >&2; return 5; }
    export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 GIT_ASKPASS=/bin/false
    export GIT_ALLOW_PROTOCOL=https HOME=/tmp
    bounded
    git init -q --bare /tmp/repository && cd /tmp/repository || return 5
    git -c http.followRedirects=false -c gc.auto=0 -c fetch.fsckObjects=true fetch -q --depth 1 --no-tags \
        --no-recurse-submodules -- "$COFFERDAM_URL" "$COFFERDAM_REFERENCE" || code=$?
    size=$(du -sk /tmp/repository) size=${size%%$'\t'*}
    ((size * 1024 <= COFFERDAM_BYTES)) && ! grep -qs 'File too large' "$SAID" || return 6
    ((code == 0)) || return 5
    # No file is checked out, and no link is followed: a link is an entry of another mode.
    IFS=' ' read -rd '' mode kind object rest < <(git ls-tree -z FETCH_HEAD -- "$COFFERDAM_PATH")
    object=${object%%$'\t'*}
    [[ $mode == 100* && $kind == blob ]] || { echo "there is no file of this path" >&2; return 3; }
    size=$(git cat-file -s "$object") && ((size <= COFFERDAM_FILE_BYTES)) || return 6
    git cat-file blob "$object" >"$BODY" || return 5
}

case $COFFERDAM_HOW in
    git) (fetches_git) 2>"$SAID" </dev/null ;;
    https) (fetches_https) 2>"$SAID" </dev/null ;;
    *) exit 125 ;;
esac
COFFERDAM_CODE=$?
COFFERDAM_ERROR=$(head -c 2048 "$SAID" | tr '\n\0' '  ')
printf '\n%s %d %d\n%s\n%s\n' "$COFFERDAM_MARK" "$COFFERDAM_CODE" "${#COFFERDAM_ERROR}" "$COFFERDAM_ERROR" "$COFFERDAM_MARK"
[[ $COFFERDAM_CODE != 0 ]] || cat "$BODY"
exit 0
