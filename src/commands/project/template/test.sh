#!/usr/bin/env bash
# Calls the tool NAME as a client does; run it in the project's directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
told=$(cofferdam project run-tool NAME --args '{}')
[[ -n $told ]] || { echo "NAME printed nothing" >&2; exit 1; }
echo "ok: $told"
