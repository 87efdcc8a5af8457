# Functions for scripts whose results a client shows in a page. Sourced by tool-sdk.sh. Written for cofferdam.

mcp_client_supports_ui() { [[ ${MCPBASH_CLIENT_SUPPORTS_UI:-0} == 1 ]]; }

# The page is named by the tool's metadata: the URI is not a part of a result.
mcp_result_with_ui() {
    local REPLY text=${2-} data=${3:-null}
    __mcp_quote "$text"
    if ! mcp_client_supports_ui || ! mcp_is_valid_json "$data"; then
        mcp_result_success "$REPLY"
        return
    fi
    [[ $data == null ]] || data=',"structuredContent":'$data
    [[ $data == null ]] && data=
    printf '{"content":[{"type":"text","text":%s}]%s,"isError":false}\n' "$REPLY" "$data"
}

mcp_result_with_ui_data() { mcp_result_with_ui "$@"; }

# Prints a page of a template with these settings.
__mcp_ui_page() {
    local page settings
    settings=$(__mcp_jq -nc --arg template "$1" --argjson config "$2" '{$template, $config} | tojson | gsub("<"; "\\u003c")') || return 1
    settings=$(printf %s "$settings" | __mcp_jq -r .)
    page=$(<"${MCP_SDK:?}/page.html")
    printf '%s\n' "${page%%'/*SETTINGS*/null'*}$settings${page#*'/*SETTINGS*/null'}"
}

mcp_ui_template_form() { __mcp_ui_page form "${1:-{\}}"; }
mcp_ui_template_data_table() { __mcp_ui_page data-table "${1:-{\}}"; }
mcp_ui_template_progress() { __mcp_ui_page progress "${1:-{\}}"; }
mcp_ui_template_diff_viewer() { __mcp_ui_page diff-viewer "${1:-{\}}"; }
mcp_ui_template_tree_view() { __mcp_ui_page tree-view "${1:-{\}}"; }
mcp_ui_template_kanban() { __mcp_ui_page kanban "${1:-{\}}"; }

mcp_ui_form() {
    local title='' tool='' fields=()
    while (($# > 1)); do
        case $1 in
            --title) title=$2 ;;
            --field) fields+=("$2") ;;
            --submit-tool) tool=$2 ;;
        esac
        shift 2
    done
    mcp_ui_template_form "$(__mcp_jq -nc --arg title "$title" --arg tool "$tool" --args '
        def titled: gsub("[-_]"; " ") | split(" ") | map(.[:1] as $first | ($first | ascii_upcase) + .[1:]) | join(" ");
        {$title, submitTool: $tool, fields: [$ARGS.positional[] | split(":") as $parts | $parts[0] as $name
            | {name: $name, type: ($parts[1] // "text"), label: ($name | titled),
               options: (($parts[2:] // []) | join(":") | if . == "" then null else split(",") end)}]}' "${fields[@]}")"
}

mcp_ui_table() {
    local title=Data columns=''
    while (($# > 1)); do
        case $1 in
            --title) title=$2 ;;
            --columns) columns=$2 ;;
        esac
        shift 2
    done
    mcp_ui_template_data_table "$(__mcp_jq -sc --arg title "$title" --arg columns "$columns" '
        {$title, columns: ($columns | split(",") | map({key: ., label: ., sortable: true})), data: (.[0] // [])}')"
}

mcp_tool_meta_with_ui() {
    __mcp_jq -nc --arg uri "${1:-}" --arg visibility "${2:-model,app}" \
        '{ui: {resourceUri: $uri, visibility: ($visibility | split(",") | map(gsub("^\\s+|\\s+$"; "")))}}'
}
