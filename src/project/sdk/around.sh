# What stands around a project's script in its cell: its files, its end, and the error that it wrote. Written for cofferdam.
umask 077
for name in error resources debug output; do : >"$FILES$name" || exit 125; done
# Lines for the client leave by the output of this shell; the script has a file, which is sent when it has ended.
# A descriptor that the script inherits: where names are guarded, no other process's can be opened.
exec 203>&1
stream=/dev/fd/203
[[ -w $stream ]] || stream=${FILES}stream
export MCP_PROGRESS_STREAM=$stream MCP_LOG_STREAM=$stream
echo
if [[ -n $ARGUMENTS ]]; then
    head -c "$ARGUMENTS" >"${FILES}arguments" || exit 125
    export MCP_TOOL_ARGS_FILE=${FILES}arguments
fi
[[ -z $METADATA ]] || export MCP_TOOL_METADATA_JSON=$METADATA
cd "$MCPBASH_PROJECT_ROOT" || exit 125

# Takes what the server says while the script runs, a line at a time.
listens() {
    local line said='' wait=() code
    # A request that a script writes is looked for.
    [[ $MCP_ELICIT_SUPPORTED == 0 ]] || wait=(-t 0.1)
    while :; do
        IFS= read -r "${wait[@]}" line
        code=$?
        said+=$line
        if ((code == 0)); then
            case $said in
                cancel) : >"$MCP_CANCEL_FILE" ;;
                "answer "*)
                    printf %s "${said#answer }" >"$MCP_ELICIT_RESPONSE_FILE.new" &&
                        mv -f -- "$MCP_ELICIT_RESPONSE_FILE.new" "$MCP_ELICIT_RESPONSE_FILE"
                    ;;
            esac
            said=
        elif ((code <= 128)); then
            return
        fi
        [[ ${#wait[@]} == 0 || ! -e $MCP_ELICIT_REQUEST_FILE ]] || asks
    done
}
asks() {
    local text=
    IFS= read -rd '' -n 60000 text <"$MCP_ELICIT_REQUEST_FILE"
    rm -f -- "$MCP_ELICIT_REQUEST_FILE" "$MCP_ELICIT_RESPONSE_FILE"
    printf '{"method":"elicitation/create","params":%s}\n' "${text//$'\n'/ }"
}
# A background command has no input unless it is given one.
listens <&0 2>/dev/null &
listener=$!

case $RUN in
    program) "$PROGRAM" </dev/null >>"${FILES}output" ;;
    bash) bash "$PROGRAM" </dev/null >>"${FILES}output" ;;
    policy) decides </dev/null 3>>"${FILES}output" >&2 ;;
    provider) reads "$MCP_RESOURCE_URI" </dev/null >>"${FILES}output" ;;
esac
code=$?
kill "$listener" 2>/dev/null
error=
IFS= read -rN 65536 error <"${FILES}error"
# Lengths in bytes.
LC_ALL=C
printf '\n%s %d %d\n%s' "$MARK" "$code" "${#error}" "$error"
[[ $code != 0 || ! -s ${FILES}resources ]] || embeds
printf '\n%s\n' "$MARK"
# A short text is sent without another program.
if IFS= read -rd '' -n 2048 output <"${FILES}output"; then cat -- "${FILES}output"; else printf %s "$output"; fi
exit 0
