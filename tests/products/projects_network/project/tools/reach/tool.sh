#!/usr/bin/env bash
# Asks for what downloads reach, without one; then asks the server for things that the functions never would.
source "${MCP_SDK:?}/tool-sdk.sh"
code=0
curl -sS -m 5 https://api.example.org/ok >/dev/null 2>&1 || code=$?
asks() { printf '{"method":"cofferdam/download","params":%s}\n' "$1" >>"$MCP_PROGRESS_STREAM"; }
asks '{"id":"../../workspace/x","url":"https://api.example.org/ok"}'
asks '{"id":"file","url":"file:///etc/passwd"}'
asks '{"id":"git","url":"git+https://api.example.org/r.git#main:a.txt"}'
asks '{"id":"big","url":"https://api.example.org/endless","bytes":99999999999,"seconds":9999}'
asks '{"id":"last","url":"https://private.example.org/"}'
for _ in $(seq 600); do
    [[ ! -e /tmp/.mcp-download-last.error ]] || break
    sleep 0.1
done
said() { "$MCPBASH_JSON_TOOL_BIN" -c .type "/tmp/.mcp-download-$1.error" 2>/dev/null || echo '"none"'; }
printf '{"curl": %d, "file": %s, "git": %s, "big": %s, "last": %s, "files": %d}' "$code" "$(said file)" "$(said git)" "$(said big)" "$(said last)" \
    "$(find /workspace /tmp -name '*passwd*' -o -name 'x' | wc -l)"
