#!/usr/bin/env bash
# Makes progress for longer than it has without, and then for ever.
count=0
while :; do
    echo '{"method":"notifications/progress","params":{"progress":'$((count++))'}}' >>"$MCP_PROGRESS_STREAM"
    sleep 0.2
done
