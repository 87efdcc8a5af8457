#!/usr/bin/env bash
# mcp: {"name": "basics-json", "description": "Says which jq there is"}
set -eu
own=$MCPBASH_JSON_TOOL_BIN
alone=$(PATH=${PATH##*:} && command -v jq)
written=no
{ : >"$own"; } 2>/dev/null && written=yes
"$own" -n --arg own "$own" --arg alone "$alone" --arg written "$written" --arg version "$("$own" -V)" \
    '{$own, $alone, $written, $version, half: "\(3 / 2)"}'
