# Functions for the scripts of a project: arguments, JSON, results, errors. Written for cofferdam, from the description
# of the calls; functions that parse JSON run the jq that every cell of a project has.

__mcp_jq() { "${MCPBASH_JSON_TOOL_BIN:-/etc/cofferdam/bin/jq}" "$@"; }

# --- Arguments

mcp_args_raw() {
    if [[ -n ${MCP_TOOL_ARGS_FILE:-} ]]; then cat "$MCP_TOOL_ARGS_FILE"; else printf %s "${MCP_TOOL_ARGS_JSON:-{\}}"; fi
}

# Sets REPLY to the argument that a filter `.name` is of. COFFERDAM_ARGS has the arguments, and then a line for each
# with a plain name: `name value`, or `name` alone where only jq can print the value.
__mcp_field() {
    local LC_ALL=C fields name=${1#.}
    [[ -n ${COFFERDAM_ARGS:-} && $1 =~ ^\.[A-Za-z_][A-Za-z0-9_]*$ ]] || return 1
    # A script that calls another one gives it arguments of its own.
    [[ ${COFFERDAM_ARGS%%$'\n'*} == "${MCP_TOOL_ARGS_JSON:-}" ]] || return 1
    fields=$'\n'${COFFERDAM_ARGS#*$'\n'}$'\n'
    REPLY=null
    if [[ $fields == *$'\n'"$name "* ]]; then
        fields=${fields#*$'\n'"$name "}
        printf -v REPLY %b "${fields%%$'\n'*}"
    elif [[ $fields == *$'\n'"$name"$'\n'* ]]; then
        return 1
    fi
}

mcp_args_get() {
    local filter=$1 value status=0 REPLY
    if __mcp_field "$filter"; then
        value=$REPLY
    else
        value=$(mcp_args_raw | __mcp_jq -rc "$filter") || status=$?
    fi
    if [[ ${2:-} == --default && ($status != 0 || $value == null) ]]; then value=${3:-} status=0; fi
    [[ $status == 0 ]] && printf '%s\n' "$value"
    return "$status"
}

mcp_args_require() {
    local value
    value=$(mcp_args_get "$1" 2>/dev/null) || value=null
    [[ $value != null && -n $value ]] || mcp_fail_invalid_args "${2:-$1 is required}"
    printf '%s\n' "$value"
}

mcp_args_bool() {
    local value pointer=$1
    value=$(mcp_args_get "$pointer" 2>/dev/null) || value=null
    [[ $value == null && ${2:-} == --default ]] && value=${3:-false}
    case $value in
        true | 1) echo true ;;
        false | 0) echo false ;;
        null) mcp_fail_invalid_args "$pointer is required" ;;
        *) mcp_fail_invalid_args "$pointer must be true or false" ;;
    esac
}

mcp_args_int() {
    local pointer=$1 value default='' least='' most=''
    shift
    while (($# > 1)); do
        case $1 in
            --default) default=$2 ;;
            --min) least=$2 ;;
            --max) most=$2 ;;
            *) mcp_fail -32603 "mcp_args_int: unknown option" ;;
        esac
        shift 2
    done
    value=$(mcp_args_get "$pointer" 2>/dev/null) || value=null
    [[ $value == null && -n $default ]] && value=$default
    [[ $value != null ]] || mcp_fail_invalid_args "$pointer is required"
    # A number that is checked before any arithmetic: bash would evaluate other text.
    [[ $value =~ ^-?(0|[1-9][0-9]{0,17})$ ]] || mcp_fail_invalid_args "$pointer must be a whole number"
    [[ -z $least ]] || ((value >= least)) || mcp_fail_invalid_args "$pointer must be at least $least"
    [[ -z $most ]] || ((value <= most)) || mcp_fail_invalid_args "$pointer must be at most $most"
    printf '%s\n' "$value"
}

mcp_meta_raw() { printf %s "${MCP_TOOL_META_JSON:-{\}}"; }
mcp_meta_get() { mcp_meta_raw | __mcp_jq -rc "$1"; }

# --- JSON, without another program

# Sets REPLY to the JSON string of a text.
__mcp_quote() {
    local LC_ALL=C text=$1 number code escape
    text=${text//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\n'/\\n}
    text=${text//$'\t'/\\t}
    text=${text//$'\r'/\\r}
    if [[ $text == *[$'\x01'-$'\x1f']* ]]; then
        for number in {1..31}; do
            printf -v code '\\x%02x' "$number"
            printf -v code %b "$code"
            printf -v escape '\\u%04x' "$number"
            text=${text//"$code"/"$escape"}
        done
    fi
    REPLY=\"$text\"
}

mcp_json_escape() { local REPLY; __mcp_quote "${1-}"; printf '%s' "$REPLY"; }

mcp_json_obj() {
    local REPLY text='' key
    (($# % 2 == 0)) || { echo "mcp_json_obj: a key without a value" >&2; return 1; }
    while (($#)); do
        __mcp_quote "$1"; key=$REPLY
        __mcp_quote "$2"
        text+=${text:+,}$key:$REPLY
        shift 2
    done
    printf '{%s}' "$text"
}

mcp_json_arr() {
    local REPLY text='' value
    for value in "$@"; do __mcp_quote "$value"; text+=${text:+,}$REPLY; done
    printf '[%s]' "$text"
}

# Matches JSON of two levels, as most results are; jq reads the rest, in the time of a process.
__mcp_is_flat_json() {
    local LC_ALL=C string='"([^"\\[:cntrl:]]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"' s=$'[ \t\r\n]*' level one all
    one="($string|-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?|true|false|null)"
    for level in 1 2; do
        one="($one|[[]$s($one($s,$s$one)*)?$s[]]|[{]$s($string$s:$s$one($s,$s$string$s:$s$one)*)?$s[}])"
    done
    all="^$s$one$s$"
    ((${#1} <= 4096)) && [[ $1 =~ $all ]]
}

mcp_is_valid_json() {
    __mcp_is_flat_json "${1-}" || printf %s "${1-}" | __mcp_jq -e 'true' >/dev/null 2>&1
}
mcp_byte_length() { local LC_ALL=C text=${1-}; printf '%s\n' "${#text}"; }

# --- Results

mcp_emit_text() { printf '%s' "${1-}"; }
mcp_emit_json() { printf '%s' "${1-}"; }

mcp_result_success() {
    local LC_ALL=C REPLY json=${1:-null} most=${2:-${MCPBASH_MAX_TEXT_BYTES:-102400}} envelope text
    mcp_is_valid_json "$json" || { mcp_result_error '{"type":"internal_error","message":"The result is no JSON"}'; return; }
    envelope='{"success":true,"result":'$json'}' text=$envelope
    if ((${#envelope} > most)); then
        text=$(printf %s "$json" | __mcp_jq -r 'if type == "array" then "Success: array with \(length) items"
            elif type == "object" then "Success: object with \(length) keys" else "Success: \(type)" end')
    fi
    __mcp_quote "$text"
    printf '{"content":[{"type":"text","text":%s}],"structuredContent":%s,"isError":false}\n' "$REPLY" "$envelope"
}

mcp_result_error() {
    local error
    error=$(printf %s "${1:-null}" | __mcp_jq -c '(if type == "object" then . else {} end)
        | {type: "internal_error", message: "Unknown error"} + .' 2>/dev/null) ||
        error='{"type":"internal_error","message":"Unknown error"}'
    __mcp_error_result "$error"
}

# Prints the result with an error that has its type and its message.
__mcp_error_result() {
    local REPLY error='{"success":false,"error":'$1'}'
    __mcp_quote "$error"
    printf '{"content":[{"type":"text","text":%s}],"structuredContent":%s,"isError":true}\n' "$REPLY" "$error"
}

mcp_error() {
    local REPLY kind=${1:-internal_error} message=${2:-Unknown error} error
    shift $(($# < 2 ? $# : 2))
    error=$(mcp_json_obj type "$kind" message "$message")
    error=${error%\}}
    while (($# > 1)); do
        case $1 in
            --hint) __mcp_quote "$2"; error+=",\"hint\":$REPLY" ;;
            --data) mcp_is_valid_json "$2" && error+=",\"data\":$2" ;;
        esac
        shift 2
    done
    __mcp_error_result "$error}"
}

# --- Failures, which end the script

mcp_fail() {
    local REPLY code=${1:--32603} message=${2:-Tool failed} data=${3:-} error
    [[ $code =~ ^-?[0-9]{1,6}$ ]] || code=-32603
    __mcp_quote "$message"
    error="{\"code\":$code,\"message\":$REPLY"
    if [[ -n $data ]] && mcp_is_valid_json "$data"; then error+=",\"data\":$data"; fi
    error+='}'
    printf '%s' "$error" >"${MCP_TOOL_ERROR_FILE:?}"
    printf '%s\n' "$error"
    printf '%s\n' "$message" >&2
    # Within $( ) this ends the substitution alone; the file with the error decides in any case.
    exit 1
}

mcp_fail_invalid_args() { mcp_fail -32602 "${1:-Invalid arguments}" "${2:-}"; }

# --- Cancellation, retries, notes for the author

mcp_is_cancelled() { [[ -e ${MCP_CANCEL_FILE:-/nonexistent} ]]; }
mcp_debug() { printf '%s\n' "${1-}" >>"${MCPBASH_DEBUG_LOG:-/dev/null}"; }

# --- Roots and paths

mcp_roots_list() { printf '%s\n' "${MCP_ROOTS_PATHS:-}"; }
mcp_roots_count() { printf '%s\n' "${MCP_ROOTS_COUNT:-0}"; }

mcp_roots_contains() {
    local path root
    path=$(realpath -m -- "$1") || return 1
    while IFS= read -r root; do
        [[ -n $root && ($path == "$root" || $path == "${root%/}"/*) ]] && return 0
    done <<<"${MCP_ROOTS_PATHS:-}"
    return 1
}

mcp_path_normalize() {
    local -a how=()
    case ${1:-} in
        --physical) shift ;;
        --logical) how=(-s); shift ;;
    esac
    realpath -m "${how[@]}" -- "$1"
}

mcp_path_collapse() { realpath -ms -- "${1-}"; }

mcp_require_path() {
    local pointer=$1 path default=no empty=no
    shift
    while (($#)); do
        case $1 in
            --default-to-single-root) default=yes ;;
            --allow-empty) empty=yes ;;
        esac
        shift
    done
    path=$(mcp_args_get "$pointer" 2>/dev/null) || path=null
    [[ $path == null ]] && path=
    [[ -z $path && $default == yes && ${MCP_ROOTS_COUNT:-0} == 1 ]] && path=$MCP_ROOTS_PATHS
    if [[ -z $path ]]; then
        [[ $empty == yes ]] || mcp_fail_invalid_args "$pointer is required"
        return 0
    fi
    path=$(mcp_path_normalize --physical "$path") || mcp_fail_invalid_args "$pointer is no path"
    mcp_roots_contains "$path" || mcp_fail_invalid_args "$pointer is outside of the allowed roots"
    printf '%s\n' "$path"
}

# --- Progress and log messages, one JSON document a line

mcp_progress() {
    local REPLY percent=${1:-0} total=${3:-}
    [[ -n ${MCP_PROGRESS_TOKEN:-} ]] || return 0
    [[ $percent =~ ^[0-9]{1,9}$ ]] || percent=0
    ((percent = 10#$percent > 100 ? 100 : 10#$percent))
    __mcp_quote "${2:-}"
    [[ $total =~ ^[0-9]{1,9}$ ]] && total=",\"total\":$((10#$total))" || total=
    printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"%s","progress":%d%s,"message":%s}}\n' \
        "$MCP_PROGRESS_TOKEN" "$percent" "$total" "$REPLY" >>"${MCP_PROGRESS_STREAM:-/dev/null}"
}

mcp_log() {
    local REPLY
    __mcp_quote "${2:-}"
    printf '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"%s","logger":%s,"data":%s}}\n' \
        "${1:-info}" "$REPLY" "${3:-null}" >>"${MCP_LOG_STREAM:-/dev/null}"
}

__mcp_log_text() { local REPLY; __mcp_quote "${3:-}"; mcp_log "$1" "${2:-}" "$REPLY"; }
mcp_log_debug() { __mcp_log_text debug "$@"; }
mcp_log_info() { __mcp_log_text info "$@"; }
mcp_log_warn() { __mcp_log_text warning "$@"; }
mcp_log_error() { __mcp_log_text error "$@"; }

# --- Other programs: retries, their progress, their errors

mcp_with_retry() {
    local most=${1:-} delay=${2:-} try=1 status whole part wait
    if [[ ! $most =~ ^[1-9][0-9]{0,2}$ || ! $delay =~ ^[0-9]{1,4}(\.[0-9]{1,3})?$ || ${3:-} != -- || $# -lt 4 ]]; then
        echo "mcp_with_retry: expected ATTEMPTS SECONDS -- COMMAND" >&2
        return 2
    fi
    shift 3
    whole=${delay%%.*} part=000
    [[ $delay == *.* ]] && part=${delay#*.}000
    # Milliseconds, doubled after each attempt.
    ((wait = 10#$whole * 1000 + 10#${part:0:3})) || true
    while :; do
        status=0
        "$@" || status=$?
        ((status >= 3 && try < most)) || return "$status"
        mcp_log_debug mcp_with_retry "attempt $try of $most ended with $status"
        ((part = wait + RANDOM % (wait / 2 + 1))) || true
        printf -v part '%d.%03d' $((part / 1000)) $((part % 1000))
        sleep "$part"
        ((try += 1, wait = wait < 300000 ? wait * 2 : wait)) || true
    done
}

# Reports one value of a program's progress as a percentage; another text than a number is none.
__mcp_run_reports() {
    local value=$1 of=$2 message=$3 REPLY
    [[ $value =~ ^([0-9]{1,15})(\.[0-9]*)?$ ]] || return 0
    value=$((10#${BASH_REMATCH[1]}))
    if [[ $of =~ ^[0-9]{1,15}$ ]]; then
        ((10#$of > 0)) || return 0
        value=$((value * 100 / 10#$of))
    fi
    if [[ $dry == yes ]]; then
        __mcp_quote "$message"
        ((value = value > 100 ? 100 : value)) || true
        printf '{"progress":%d,"message":%s}\n' "$value" "$REPLY" >&2
    else
        mcp_progress "$value" "$message"
    fi
}

# Reads a program's lines, with the options of mcp_run_with_progress.
__mcp_run_reads() {
    local line fields message
    while IFS= read -r line || [[ -n $line ]]; do
        # Bars are drawn over each other with CR.
        line=${line%$'\r'} line=${line##*$'\r'}
        if [[ ! $line =~ $pattern ]]; then
            if [[ -n $others ]]; then
                printf '%s\n' "$line" >>"$others"
            elif [[ $quiet == no ]]; then
                mcp_debug "$line"
            fi
            continue
        fi
        # Each match renews the time limit, by a line that says nothing.
        [[ $dry == yes || -z ${MCP_PROGRESS_STREAM:-} ]] || echo >>"$MCP_PROGRESS_STREAM"
        # Nobody would see it.
        [[ -n ${MCP_PROGRESS_TOKEN:-} || $dry == yes ]] || continue
        case $extract in
            match1) __mcp_run_reports "${BASH_REMATCH[1]:-}" "$total" "$line" ;;
            ratio) __mcp_run_reports "${BASH_REMATCH[1]:-}" "${BASH_REMATCH[2]:-0}" "$line" ;;
            json)
                fields=$(printf %s "$line" | __mcp_jq -r '"\(.progress // "" | tostring) \(.message // "")"' 2>/dev/null) || continue
                message=${fields#* }
                __mcp_run_reports "${fields%% *}" "$total" "${message:-$line}"
                ;;
        esac
    done
}

mcp_run_with_progress() {
    local pattern='' extract=json interval=0.2 output='' file='' total='' dry=no quiet=no others='' status=0 program reader pipe saved
    while (($#)); do
        case $1 in
            --) shift; break ;;
            --dry-run) dry=yes; shift; continue ;;
            --quiet) quiet=yes; shift; continue ;;
            --pattern) pattern=${2:-} ;;
            --extract) extract=${2:-} ;;
            --interval) interval=${2:-} ;;
            --stdout) output=${2:-} ;;
            --progress-file) file=${2:-} ;;
            --total) total=${2:-} ;;
            --stderr-file) others=${2:-} ;;
            *) echo "mcp_run_with_progress: unknown option $1" >&2; return 2 ;;
        esac
        shift $(($# < 2 ? $# : 2))
    done
    [[ '' =~ $pattern ]] 2>/dev/null || status=$?
    if [[ -z $pattern || $status == 2 || $# == 0 || ! $extract =~ ^(json|match1|ratio)$ ]]; then
        echo "mcp_run_with_progress: expected --pattern REGEX [--extract json|match1|ratio] -- COMMAND" >&2
        return 2
    fi
    [[ -z $output ]] || exec {saved}>&1 >"$output"
    if [[ -n $file ]]; then
        : >"$file"
        if [[ -n $others ]]; then "$@" 2>>"$others" & else "$@" & fi
        program=$!
        # What is neither progress nor of standard error is of no use.
        tail -n +1 -s "$interval" -f --pid="$program" -- "$file" 2>/dev/null | others='' __mcp_run_reads >&2 &
        reader=$!
        status=0
        wait "$program" || status=$?
    else
        exec {pipe}> >(__mcp_run_reads >&2)
        reader=$!
        status=0
        "$@" 2>&"$pipe" || status=$?
        exec {pipe}>&-
    fi
    wait "$reader" || true
    [[ -z $output ]] || exec >&"$saved" {saved}>&-
    return "$status"
}

# The message of a program that failed: of the JSON that it printed, else its standard error.
mcp_extract_cli_error() {
    local message
    message=$(printf %s "${1-}" | __mcp_jq -rs '
        def text: select(type == "string" and . != "");
        (first | objects) as $one | first(
            ($one.error | objects | .message | text), ($one.error | text),
            (select($one.success == false) | $one.message | text),
            ($one.errors | arrays | first | objects | .message | text))' 2>/dev/null) || message=
    [[ -n $message ]] || message=${2-}
    printf '%s\n' "${message:-The command ended with exit code ${3:-1}}"
}

# --- Long results, and files beside a result

mcp_json_truncate() {
    local json=${1-} most=102400 path=''
    shift $(($# < 1 ? $# : 1))
    if [[ ${1:-} != --array-path ]]; then
        [[ ${1:-} =~ ^[1-9][0-9]{0,9}$ ]] && most=$1
        shift $(($# < 1 ? $# : 1))
    fi
    [[ ${1:-} == --array-path ]] && path=${2:-.}
    if [[ -n $path && ! $path =~ ^(\.[A-Za-z_][A-Za-z0-9_]*)+$ ]]; then
        mcp_json_obj type invalid_path_syntax message "--array-path is .key or .key.nested" |
            { printf '{"result":null,"truncated":false,"error":'; cat; printf '}\n'; }
        return 0
    fi
    printf %s "$json" | __mcp_jq -c --argjson most "$most" --arg path "$path" '
        def no($type; $message): {result: null, truncated: false, error: {type: $type, message: $message}};
        def bytes: tojson | utf8bytelength;
        . as $all
        | (if $path != "" then $path[1:] | split(".")
           elif type == "array" then []
           elif type == "object" and (.results | type) == "array" then ["results"]
           else null end) as $at
        | (if $at == null then null else try getpath($at) catch null end) as $items
        | if $path != "" and $items == null then no("path_not_found"; "there is no \($path)")
          elif $path != "" and ($items | type) != "array" then no("invalid_array_path"; "\($path) is not an array")
          elif ($all | bytes) <= $most then
            {result: $all, truncated: false} + (if $at == null then {} else ($items | length) as $n | {kept: $n, total: $n} end)
          elif $at == null or ($all | setpath($at; []) | bytes) > $most then
            no("output_too_large"; "the result is longer than \($most) bytes, without the items of any array too")
          else
            def kept($low; $high): if $low >= $high then $low
              else ((($low + $high + 1) / 2) | floor) as $middle
                | if ($all | setpath($at; $items[:$middle]) | bytes) <= $most then kept($middle; $high)
                  else kept($low; $middle - 1) end end;
            kept(0; $items | length) as $kept
            | {result: ($all | setpath($at; $items[:$kept])), truncated: true, kept: $kept, total: ($items | length)}
          end' 2>/dev/null ||
        printf '%s\n' '{"result":null,"truncated":false,"error":{"type":"invalid_json","message":"The result is no JSON"}}'
}

mcp_result_text_with_resource() {
    local REPLY json=${1:-null} list='' entry=''
    shift $(($# < 1 ? $# : 1))
    while (($# > 1)); do
        __mcp_quote "$2"
        case $1 in
            --path) list+=${entry:+$entry\},} entry="{\"path\":$REPLY" ;;
            --mime) entry+=${entry:+,\"mimeType\":$REPLY} ;;
            --uri) entry+=${entry:+,\"uri\":$REPLY} ;;
        esac
        shift 2
    done
    printf '[%s]' "$list${entry:+$entry\}}" >"${MCP_TOOL_RESOURCES_FILE:-/dev/null}"
    # Text that is no JSON is a string of it.
    mcp_is_valid_json "$json" || { __mcp_quote "$json"; json=$REPLY; }
    mcp_result_success "$json"
}

# --- Settings of a tool

mcp_config_load() {
    local variable='' file='' example='' defaults='' source all=''
    while (($# > 1)); do
        case $1 in
            --env) variable=$2 ;;
            --file) file=$2 ;;
            --example) example=$2 ;;
            --defaults) defaults=$2 ;;
        esac
        shift 2
    done
    [[ -n $example && -r $example ]] && example=$(<"$example") || example=
    [[ -n $file && -r $file ]] && file=$(<"$file") || file=
    # Only a name of a variable: bash would evaluate the index of an array.
    [[ $variable =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] && variable=${!variable:-} || variable=
    [[ -n $variable && $variable != '{'* && -r $variable ]] && variable=$(<"$variable")
    # The later ones win, key by key.
    for source in "$defaults" "$example" "$file" "$variable"; do
        [[ -n $source ]] || continue
        if printf %s "$source" | __mcp_jq -e 'type == "object"' >/dev/null 2>&1; then
            all+=$source$'\n'
        else
            mcp_log_warn mcp_config_load "one of the sources is no JSON object, and was left out"
        fi
    done
    MCP_CONFIG_JSON=$(printf %s "$all" | __mcp_jq -cs 'add // {}') && export MCP_CONFIG_JSON
    [[ -n $all ]]
}

mcp_config_get() {
    local value
    value=$(printf %s "${MCP_CONFIG_JSON:-{\}}" | __mcp_jq -rc "$1" 2>/dev/null) || value=null
    if [[ -z $value || $value == null ]]; then
        [[ ${2:-} == --default ]] || return 1
        value=${3:-}
    fi
    printf '%s\n' "$value"
}

# --- Downloads, which the server makes in a cell that reaches the one host: this one has no network

__mcp_download_error() {
    local REPLY error
    error=$(mcp_json_obj type "$1" message "$2")
    printf '{"success":false,"error":%s}\n' "$error"
}

# Has the server download once. Sets REPLY to the file of what came, or fails with REPLY as the error in JSON.
__mcp_download() {
    local id=$BASHPID-$RANDOM$RANDOM place tries=0 most
    place=${MCP_CANCEL_FILE%cancel}download-$id
    # Time in the queue of downloads beside that of the download itself.
    most=$(((${seconds:-60} + 30) * 20))
    printf '{"jsonrpc":"2.0","method":"cofferdam/download","params":{"id":"%s",%s}}\n' "$id" "$1" >>"$MCP_PROGRESS_STREAM"
    until [[ -e $place.body ]]; do
        if [[ -e $place.error ]]; then
            REPLY=$(<"$place.error")
            rm -f -- "$place.error"
            return 1
        fi
        if ((tries++ >= most)) || mcp_is_cancelled; then
            REPLY='{"type":"network_error","message":"there was no answer in time"}'
            return 1
        fi
        sleep 0.05
    done
    REPLY=$place.body
}

mcp_download_safe() {
    local REPLY url='' to='' bytes='' seconds='' agent='' retry=1 delay=1.0 allow='' deny='' fields try=1 wait part
    while (($#)); do
        case $1 in
            --url) url=${2-} ;;
            --out) to=${2-} ;;
            --max-bytes) bytes=${2-} ;;
            --timeout) seconds=${2-} ;;
            --user-agent) agent=${2-} ;;
            --retry) retry=${2-} ;;
            --retry-delay) delay=${2-} ;;
            --allow) __mcp_quote "${2-}"; allow+=${allow:+,}$REPLY ;;
            --deny) __mcp_quote "${2-}"; deny+=${deny:+,}$REPLY ;;
            *) __mcp_download_error invalid_params "there is no option $1"; return 0 ;;
        esac
        shift $(($# < 2 ? $# : 2))
    done
    if [[ -z $url ]]; then
        __mcp_download_error invalid_url "--url is required"
    elif [[ -z $to ]]; then
        __mcp_download_error invalid_params "--out is required"
    elif [[ $url != https://?* ]]; then
        __mcp_download_error invalid_url "the address does not begin with https://"
    elif [[ ! $bytes =~ ^([1-9][0-9]{0,11})?$ ]]; then
        __mcp_download_error invalid_params "--max-bytes is a whole number above 0"
    elif [[ ! $seconds =~ ^([1-9]|[1-5][0-9]|60)?$ ]]; then
        __mcp_download_error invalid_params "--timeout is a whole number of seconds from 1 to 60"
    elif [[ ! $retry =~ ^[1-9][0-9]?$ ]]; then
        __mcp_download_error invalid_params "--retry is a whole number from 1 to 99"
    elif [[ ! $delay =~ ^([0-9]{0,4})(\.([0-9]{1,3})[0-9]*)?$ || -z $delay ]]; then
        __mcp_download_error invalid_params "--retry-delay is a number of seconds, such as 0.5"
    elif [[ ${COFFERDAM_DOWNLOADS:-0} != 1 || ! -w ${MCP_PROGRESS_STREAM:-} ]]; then
        __mcp_download_error provider_unavailable "downloads are made for tools, providers and completions of a project"
    else
        part=${BASH_REMATCH[3]}000
        # Milliseconds, doubled after each attempt.
        wait=$((10#0${BASH_REMATCH[1]} * 1000 + 10#${part:0:3}))
        __mcp_quote "$url"
        fields="\"url\":$REPLY,\"allow\":[$allow],\"deny\":[$deny]"
        [[ -z $bytes ]] || fields+=",\"bytes\":$bytes"
        [[ -z $seconds ]] || fields+=",\"seconds\":$seconds"
        if [[ -n $agent ]]; then __mcp_quote "$agent"; fields+=",\"agent\":$REPLY"; fi
        # A longer line could be mixed with that of another process.
        if ((${#fields} > 3900)); then
            __mcp_download_error invalid_params "address, hosts and options are longer than 3900 characters"
            return 0
        fi
        until __mcp_download "$fields"; do
            if ((try++ >= retry)) || [[ $REPLY != *'"type":"network_error"'* ]]; then
                printf '{"success":false,"error":%s}\n' "$REPLY"
                return 0
            fi
            ((part = wait + RANDOM % (wait / 2 + 1))) || true
            printf -v part '%d.%03d' $((part / 1000)) $((part % 1000))
            sleep "$part"
            ((wait = wait < 300000 ? wait * 2 : wait)) || true
        done
        bytes=$(stat -c %s -- "$REPLY")
        if mv -f -- "$REPLY" "$to" 2>/dev/null; then
            __mcp_quote "$to"
            printf '{"success":true,"bytes":%d,"path":%s}\n' "$bytes" "$REPLY"
        else
            rm -f -- "$REPLY"
            __mcp_download_error write_error "the file cannot be written there"
        fi
    fi
}

mcp_download_safe_or_fail() {
    local answer message
    answer=$(mcp_download_safe "$@")
    if [[ $answer == '{"success":true'* ]]; then
        printf %s "$answer" | __mcp_jq -r .path
        return 0
    fi
    message=$(printf %s "$answer" | __mcp_jq -r '"Download failed (\(.error.type)): \(.error.message)"') || message="Download failed"
    mcp_fail_invalid_args "$message"
}

# --- Questions for the user

# Asks the server to ask the user, and prints the answer. Ends with 1 where there is none.
__mcp_ask() {
    local seconds=${2:-30} tries=0
    if [[ ${MCP_ELICIT_SUPPORTED:-0} != 1 ]]; then
        echo "mcp_elicit: Client does not support elicitation" >&2
        printf '{"action":"decline","content":null}\n'
        return 1
    fi
    [[ $seconds =~ ^[0-9]{1,5}$ ]] || seconds=30
    rm -f -- "$MCP_ELICIT_RESPONSE_FILE"
    printf '%s' "$1" >"$MCP_ELICIT_REQUEST_FILE.tmp.$$" || return 1
    mv -f -- "$MCP_ELICIT_REQUEST_FILE.tmp.$$" "$MCP_ELICIT_REQUEST_FILE" || return 1
    until [[ -e $MCP_ELICIT_RESPONSE_FILE ]]; do
        if ((tries++ >= 10#$seconds * 10)) || mcp_is_cancelled; then
            rm -f -- "$MCP_ELICIT_REQUEST_FILE"
            echo "mcp_elicit: no answer within $seconds s" >&2
            printf '{"action":"cancel","content":null}\n'
            return 1
        fi
        sleep 0.1
    done
    printf '%s\n' "$(<"$MCP_ELICIT_RESPONSE_FILE")"
    rm -f -- "$MCP_ELICIT_RESPONSE_FILE"
}

mcp_elicit() {
    local REPLY schema=${2:-} mode=${4:-form}
    [[ -n $schema ]] || schema='{"type":"object","properties":{}}'
    __mcp_quote "${1-}"
    __mcp_ask "{\"message\":$REPLY,\"schema\":$schema,\"mode\":\"${mode//[^a-z]/}\"}" "${3:-}"
}

mcp_elicit_url() {
    local REPLY message
    __mcp_quote "${1-}"
    message=$REPLY
    __mcp_quote "${2-}"
    __mcp_ask "{\"message\":$message,\"url\":$REPLY,\"mode\":\"url\"}" "${3:-}"
}

# Asks for one field, which is required: its name as JSON, and its schema.
__mcp_elicit_field() {
    mcp_elicit "$1" "{\"type\":\"object\",\"properties\":{$2:$3},\"required\":[$2]}"
}

# Makes a list of strings, or of values with titles.
__mcp_options() {
    local kind=$1 option separator=
    shift
    for option; do
        if [[ $kind == plain ]]; then
            __mcp_quote "$option"
        else
            local value
            __mcp_quote "${option%%:*}"
            value=$REPLY
            __mcp_quote "${option#*:}"
            REPLY="{\"const\":$value,\"title\":$REPLY}"
        fi
        options+=$separator$REPLY
        separator=,
    done
}

mcp_elicit_string() {
    local REPLY
    __mcp_quote "${2:-value}"
    __mcp_elicit_field "${1-}" "$REPLY" '{"type":"string"}'
}

mcp_elicit_confirm() { __mcp_elicit_field "${1-}" '"confirmed"' '{"type":"boolean"}'; }

mcp_elicit_choice() {
    local REPLY options=
    __mcp_options plain "${@:2}"
    __mcp_elicit_field "${1-}" '"choice"' "{\"type\":\"string\",\"enum\":[$options]}"
}

mcp_elicit_titled_choice() {
    local REPLY options=
    __mcp_options titled "${@:2}"
    __mcp_elicit_field "${1-}" '"choice"' "{\"type\":\"string\",\"oneOf\":[$options]}"
}

mcp_elicit_multi_choice() {
    local REPLY options=
    __mcp_options plain "${@:2}"
    __mcp_elicit_field "${1-}" '"choices"' "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"enum\":[$options]}}"
}

mcp_elicit_titled_multi_choice() {
    local REPLY options=
    __mcp_options titled "${@:2}"
    __mcp_elicit_field "${1-}" '"choices"' "{\"type\":\"array\",\"items\":{\"anyOf\":[$options]}}"
}

[[ ! -r ${MCP_SDK:-}/ui-sdk.sh ]] || source "$MCP_SDK/ui-sdk.sh"
