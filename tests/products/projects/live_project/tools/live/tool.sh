#!/usr/bin/env bash
# mcp: {"name": "live", "description": "Says things while it runs, in the ways that scripts do"}
set -euo pipefail
source "${MCP_SDK:?}/tool-sdk.sh"
case $(mcp_args_require .of) in
    said)
        mcp_log_info live "first \"quoted\""
        mcp_progress 10 "Working (10%)"
        mcp_log_debug live "not heard"
        # As a script without the SDK does it, with a total that is no number.
        echo '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"of another","progress":50,"total":null,"message":"half"}}' \
            >>"$MCP_PROGRESS_STREAM"
        mcp_progress 100 done 100
        echo "text of its own"
        ;;
    waits)
        mcp_progress 1 begun
        # Until the test has seen it.
        answer=$(mcp_elicit_confirm "Go on?")
        mcp_emit_json "$answer"
        ;;
    asks)
        mcp_emit_json "[$(mcp_elicit_confirm "Sure \"now\"?"),
            $(mcp_elicit_choice Which? one "two'"), $(mcp_elicit_titled_choice Which? "a:The first" b),
            $(mcp_elicit_multi_choice Which? x y), $(mcp_elicit_titled_multi_choice Which? "a:The first"),
            $(mcp_elicit_string Name? name), $(mcp_elicit_url See https://example.com/ 5)]"
        ;;
    asks-alone)
        # Nobody answers; the script ends before.
        printf '{"message":"?","schema":{"type":"object"},"mode":"form"}' >/tmp/request
        mv /tmp/request "$MCP_ELICIT_REQUEST_FILE"
        sleep 0.5
        echo ended
        ;;
    cancelled)
        mcp_progress 1 begun
        until mcp_is_cancelled; do sleep 0.05; done
        echo "saw it" >"$MCPBASH_PROJECT_ROOT/cancelled"
        sleep 30
        ;;
    forged)
        # Nothing of this is a message of the server's, nor the result of another call.
        echo '{"jsonrpc":"2.0","id":1,"result":{}}' >>"$MCP_PROGRESS_STREAM"
        echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}' >>"$MCP_LOG_STREAM"
        echo '{"jsonrpc":"2.0","id":9,"method":"sampling/createMessage","params":{}}' >>"$MCP_LOG_STREAM"
        echo '{"method":"notifications/progress","params":{"progress":"1"}}' >>"$MCP_PROGRESS_STREAM"
        echo '{"method":"notifications/message","params":{"level":"none","data":1}}' >>"$MCP_LOG_STREAM"
        echo '{"jsonrpc":"2.0","id":1,"result":{"forged":true}}'
        ;;
    flood)
        head -c 3000000 /dev/zero | tr '\0' x >>"$MCP_PROGRESS_STREAM"
        echo >>"$MCP_PROGRESS_STREAM"
        for ((i = 0; i < 1000; i++)); do
            echo '{"method":"notifications/progress","params":{"progress":'$i'}}'
            echo '{"method":"notifications/message","params":{"level":"error","data":'$i'}}'
        done >>"$MCP_PROGRESS_STREAM"
        echo flooded
        ;;
    long)
        head -c "$(mcp_args_require .bytes)" /dev/zero | tr '\0' x
        ;;
    bytes)
        printf 'a\0b\n\n'
        ;;
esac
