#!/usr/bin/env bash
# Returns its argument as it came.
set -euo pipefail
source "${MCP_SDK:?}/tool-sdk.sh"
value=$(mcp_args_get '.value + "x"')
mcp_emit_json "$(mcp_json_obj value "${value%x}")"
