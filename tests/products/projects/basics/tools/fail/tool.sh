#!/usr/bin/env bash
# mcp: {"name": "basics-fail", "description": "Fails in one way or another"}
set -euo pipefail
source "${MCP_SDK:?}/tool-sdk.sh"
case $(mcp_args_require .how) in
    fail) mcp_fail -32602 'not "this"' '{"n": 1}' ;;
    *) echo "said on stderr" >&2; exit 3 ;;
esac
