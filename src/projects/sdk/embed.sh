# Prints the files that a script named in MCP_TOOL_RESOURCES_FILE: for each a line of JSON, its length, its bytes. The runner
# calls it after the script. Written for cofferdam.
embeds() {
    local LC_ALL=C path entry size left=524288
    # Two lines for each: the path as bash reads it, and all that was said of it.
    "$MCPBASH_JSON_TOOL_BIN" -rRs 'def line: gsub("\\\\"; "\\\\") | gsub("\n"; "\\n");
        (try fromjson catch null) as $json
        | if $json == null then
            split("\n")[] | select(. != "") | split("\t") | {path: .[0], mimeType: .[1], uri: .[2]}
          else $json | if type == "array" then .[] else . end | if type == "string" then {path: .} else . end end
        | objects | select(.path | type == "string" and . != "")
        | (.path | line), ({path, mimeType, uri} | tojson)' <"$MCP_TOOL_RESOURCES_FILE" |
        while IFS= read -r path && IFS= read -r entry; do
            printf -v path %b "$path"
            size=$(stat -Lc %s -- "$path" 2>/dev/null)
            if [[ ! -f $path || ! -r $path || ! $size =~ ^[0-9]+$ ]]; then
                echo "$path is not embedded: there is no such file" >&2
            elif ((size > left)); then
                echo "$path is not embedded: all such files have 512 KiB" >&2
            else
                ((left -= size))
                printf '%s\n%d\n' "$entry" "$size"
                head -c "$size" -- "$path"
            fi
        done
}
embeds
