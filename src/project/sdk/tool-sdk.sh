# Functions for the scripts of a project: arguments, JSON, results, errors. Written for cofferdam, from the description
# of the calls; functions that parse JSON need jq in the cell.

__mcp_jq() { "${MCPBASH_JSON_TOOL_BIN:-jq}" "$@"; }

# --- Arguments

mcp_args_raw() {
    if [[ -n ${MCP_TOOL_ARGS_FILE:-} ]]; then cat "$MCP_TOOL_ARGS_FILE"; else printf %s "${MCP_TOOL_ARGS_JSON:-{\}}"; fi
}

mcp_args_get() {
    local filter=$1 value status=0
    value=$(mcp_args_raw | __mcp_jq -rc "$filter") || status=$?
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

mcp_is_valid_json() { printf %s "${1-}" | __mcp_jq -e 'true' >/dev/null 2>&1; }
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
    local REPLY error
    error=$(printf %s "${1:-null}" | __mcp_jq -c '(if type == "object" then . else {} end)
        | {type: "internal_error", message: "Unknown error"} + .' 2>/dev/null) ||
        error='{"type":"internal_error","message":"Unknown error"}'
    error='{"success":false,"error":'$error'}'
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
    mcp_result_error "$error}"
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
