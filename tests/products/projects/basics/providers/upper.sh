#!/usr/bin/env bash
# Reads upper://WORD as the word in capitals.
word=${1#upper://}
[[ $1 == "$MCP_RESOURCE_URI" && -n $word ]] || exit 4
printf %s "${word^^}"
