#!/usr/bin/env bash
# mcp: {"name": "basics-sdk", "description": "Calls a function of the SDK, in the ways that scripts do"}
set -euo pipefail
source "${MCP_SDK:?}/tool-sdk.sh"
status=0
case $(mcp_args_require .of) in
    retry)
        tries=0
        third() { tries=$((tries + 1)); [[ $tries == 3 ]] || return 7; }
        mcp_with_retry 5 0.01 -- third
        mcp_with_retry 2 0 -- bash -c 'exit 2' || status=$?
        mcp_emit_json "[$tries, $status]"
        ;;
    progress)
        cd /tmp
        output=$(mcp_run_with_progress --pattern '([0-9]+)%' --extract match1 --stderr-file other -- \
            bash -c 'echo 10% >&2; echo said >&2; echo printed; exit 4') || status=$?
        ratios=$(mcp_run_with_progress --pattern '([0-9]+)/([0-9]+)' --extract ratio --dry-run -- \
            bash -c 'echo 1/4 >&2; echo 1/0 >&2; echo 9/10 >&2' 2>&1)
        file=$(mcp_run_with_progress --pattern 'us=([0-9]+)' --extract match1 --total 200 --progress-file of --dry-run -- \
            bash -c 'echo us=50 >of' 2>&1)
        mcp_emit_json "$(mcp_json_arr "$output" "$status" "$(<other)" "$ratios" "$file")"
        ;;
    config)
        echo '{"b": 8, "c": {"d": false}}' >/tmp/file
        SETTINGS='{"a": 9}'
        mcp_config_load --env SETTINGS --file /tmp/file --example /none --defaults '{"a": 1, "b": 2, "e": 3}'
        mcp_config_get .none || status=$?
        mcp_emit_json "$(mcp_json_arr "$(mcp_config_get .a)" "$(mcp_config_get .b)" "$(mcp_config_get .c.d)" \
            "$(mcp_config_get .e)" "$(mcp_config_get .none --default f)" "$status")"
        ;;
    truncate)
        mcp_emit_json "[$(mcp_json_truncate '[11111,22222,33333]' 14),
            $(mcp_json_truncate '{"a":{"b":[1,2,3]}}' 16 --array-path .a.b),
            $(mcp_json_truncate '{"a":1}' --array-path .b), $(mcp_json_truncate '{"a":1}' 9 --array-path '.a[0]')]"
        ;;
    arguments)
        same=yes
        for name in text lines number float none list; do
            [[ "$(mcp_args_get ".$name"; echo x)" == "$(mcp_args_raw | jq -rc ".$name"; echo x)" ]] || same="not $name"
        done
        other=$(MCP_TOOL_ARGS_JSON='{"number": 9}' mcp_args_get .number)
        # Neither these nor a result of two levels need it.
        MCPBASH_JSON_TOOL_BIN=false
        mcp_result_success "$(mcp_json_obj same "$same" other "$other" number "$(mcp_args_int .number)")"
        ;;
    json)
        valid=()
        for text in '{"a": [1, -2.5e3, true], "b": {}}' '"\u00e9\""' '{"a":{"b":{"c":[[]]}}}' \
            '{"a":}' '[1,]' 'tru' "\"$(printf 'a\nb')\"" '"\u0e9"' '{a:1}' '"a'; do
            mcp_is_valid_json "$text" && valid+=(yes) || valid+=(no)
        done
        mcp_emit_text "${valid[*]}"
        ;;
    embed)
        name=$'/tmp/a "\\n\nb'
        printf 'said\n' >"$name"
        printf 'a\0b' >/tmp/raw
        mcp_result_text_with_resource '{"done": true}' --path "$name" --mime text/markdown --path /tmp/raw --uri own:raw \
            --path /tmp/none --path completions/broken.sh
        ;;
    embed-lines)
        printf '/workspace/resources/note.txt\ttext/x\town:note\n/etc/hostname\n' >"$MCP_TOOL_RESOURCES_FILE"
        mcp_emit_text done
        ;;
    embed-long)
        head -c 600000 /dev/zero >/tmp/long
        mcp_result_text_with_resource done --path /tmp/long
        ;;
    log)
        mcp_log_debug one "left out"
        mcp_log_info one $'\u00e9 "x"\n'
        mcp_log notice '' '{"a": 1}'
        mcp_log loud one '"no level"'
        mcp_fail -32602 $'\u00e9'
        ;;
    errors)
        mcp_emit_json "$(mcp_json_arr "$(mcp_extract_cli_error '{"error":{"message":"one"}}' said 3)" \
            "$(mcp_extract_cli_error '{"errors":[{"message":"two"}]}' said 3)" \
            "$(mcp_extract_cli_error 'no JSON' said 3)" "$(mcp_extract_cli_error '' '' 3)")"
        ;;
    elicit) mcp_emit_json "[$(mcp_elicit_confirm Sure? || true), $MCP_ELICIT_SUPPORTED]" ;;
    download) mcp_emit_json "$(mcp_download_safe --url https://example.com/a --out /tmp/a)" ;;
    download-or-fail) mcp_download_safe_or_fail --url http://example.com/a --out /tmp/a ;;
esac
