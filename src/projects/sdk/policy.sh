# Asks the project's policy.sh about one call, and prints "allow" if it says so. Anything else refuses: an exit on the way, a
# failure, silence. Its answer goes to descriptor 3. Written for cofferdam.
decides() (
    set -euo pipefail
    source "$MCP_SDK/tool-sdk.sh"
    _MCP_TOOLS_ERROR_CODE='' _MCP_TOOLS_ERROR_MESSAGE='' _MCP_TOOLS_ERROR_DATA=''
    mcp_tools_error() { _MCP_TOOLS_ERROR_CODE=${1:-} _MCP_TOOLS_ERROR_MESSAGE=${2:-} _MCP_TOOLS_ERROR_DATA=${3:-}; }
    mcp_tools_policy_init() { :; }
    # The server has asked its own list before; a policy.sh without this function has nothing to add.
    mcp_tools_policy_check() { :; }
    source "$MCPBASH_SERVER_DIR/policy.sh"
    # The kernel takes no longer variable than 128 KiB.
    [[ -n ${MCP_TOOL_METADATA_JSON:-} ]] || mcp_fail -32602 "Tool '$MCP_TOOL_NAME' blocked by policy: its description is too long to be judged"
    status=0
    mcp_tools_policy_check "$MCP_TOOL_NAME" "$MCP_TOOL_METADATA_JSON" || status=$?
    if [[ $status == 0 ]]; then
        printf allow >&3
        exit 0
    fi
    [[ $_MCP_TOOLS_ERROR_CODE =~ ^-?[0-9]{1,6}$ ]] || _MCP_TOOLS_ERROR_CODE=-32602
    [[ -n $_MCP_TOOLS_ERROR_MESSAGE ]] || _MCP_TOOLS_ERROR_MESSAGE="Tool '$MCP_TOOL_NAME' blocked by policy"
    mcp_fail "$_MCP_TOOLS_ERROR_CODE" "$_MCP_TOOLS_ERROR_MESSAGE" "$_MCP_TOOLS_ERROR_DATA"
)
decides
