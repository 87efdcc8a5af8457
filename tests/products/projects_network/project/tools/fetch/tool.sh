#!/usr/bin/env bash
# Downloads with these words, and prints the answer with what came.
set -euo pipefail
source "${MCP_SDK:?}/tool-sdk.sh"
mapfile -t words < <(mcp_args_get '.words[]')
answer=$(mcp_download_safe "${words[@]}" --out /tmp/came)
size=none
[[ ! -e /tmp/came ]] || size=$(sha256sum </tmp/came)
printf '{"answer": %s, "sum": "%s"}' "$answer" "${size%% *}"
