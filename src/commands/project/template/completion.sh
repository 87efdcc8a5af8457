#!/usr/bin/env bash
set -euo pipefail

# What has been typed so far is in MCP_COMPLETION_ARGS_JSON, as "prefix".
printf '["Ada", "Grace", "Linus"]\n'
