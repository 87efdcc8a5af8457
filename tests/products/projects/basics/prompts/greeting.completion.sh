#!/usr/bin/env bash
# Suggests what it was given, and where it is.
jq -c '[.query, .argument.name, .context.arguments.other]' <<<"$MCP_COMPLETION_ARGS_JSON"
