#!/usr/bin/env bash
# Suggests the files of the project's resources that begin so.
query=$("${MCPBASH_JSON_TOOL_BIN:?}" -r .query <<<"$MCP_COMPLETION_ARGS_JSON")
names=(resources/"$query"*)
printf '%s\n' "${names[@]}" | jq -R | jq -cs '{suggestions: ., hasMore: true, next: 1}'
