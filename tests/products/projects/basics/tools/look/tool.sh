#!/usr/bin/env bash
# mcp: {"name": "basics-look", "description": "Says where it is and what it can do there"}
set -euo pipefail
source "${MCP_SDK:?}/tool-sdk.sh"
writes=no
{ echo >written; } 2>/dev/null && writes=yes
{ echo >>"$MCP_SDK/tool-sdk.sh"; } 2>/dev/null && writes=functions
mcp_emit_json "$(mcp_json_obj cwd "$PWD" name "$MCP_TOOL_NAME" root "$MCPBASH_PROJECT_ROOT" \
    sees "$([[ -r server.d/server.meta.json ]] && echo yes)" writes "$writes" \
    secret "${SECRET_OF_THE_CALLER:-}" stdin "$(cat)")"
