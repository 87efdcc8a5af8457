# Paths, for scripts that source lib/path.sh. Written for cofferdam.
declare -F mcp_path_normalize >/dev/null || source "${MCP_SDK:?}/tool-sdk.sh"
mcp_path_collapse() { realpath -ms -- "${1-}"; }
