# What stands around a project's script in its cell: its files, its end, and the error that it wrote. Written for cofferdam.
# Variables of this shell begin with COFFERDAM_, which no hook and no operator sets: another name could be a script's.
umask 077
for COFFERDAM_NAME in error resources debug output; do : >"$COFFERDAM_FILES$COFFERDAM_NAME" || exit 125; done
# Lines for the client leave by the output of this shell; the script has a file, which is sent when it has ended.
# A descriptor that the script inherits: where names are guarded, no other process's can be opened.
exec 203>&1
MCP_PROGRESS_STREAM=/dev/fd/203
[[ -w $MCP_PROGRESS_STREAM ]] || MCP_PROGRESS_STREAM=${COFFERDAM_FILES}stream
export MCP_PROGRESS_STREAM MCP_LOG_STREAM=$MCP_PROGRESS_STREAM
echo
if [[ -n $COFFERDAM_ARGUMENTS ]]; then
    head -c "$COFFERDAM_ARGUMENTS" >"${COFFERDAM_FILES}arguments" || exit 125
    export MCP_TOOL_ARGS_FILE=${COFFERDAM_FILES}arguments
fi
[[ -z $COFFERDAM_METADATA ]] || export MCP_TOOL_METADATA_JSON=$COFFERDAM_METADATA
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
                # What is left of one that cannot be stored is no line: nothing is taken any more.
                "download "*) takes $said || return ;;
            esac
            said=
        elif ((code <= 128)); then
            return
        fi
        [[ ${#wait[@]} == 0 || ! -e $MCP_ELICIT_REQUEST_FILE ]] || asks
    done
}
# Takes a download, so many bytes of the input: a file that is there is whole.
takes() {
    local place=${COFFERDAM_FILES}download-$2.$3
    head -c "$4" >"$place.new" && mv -f -- "$place.new" "$place"
}
asks() {
    local text=
    IFS= read -rd '' -n 60000 text <"$MCP_ELICIT_REQUEST_FILE"
    rm -f -- "$MCP_ELICIT_REQUEST_FILE" "$MCP_ELICIT_RESPONSE_FILE"
    printf '{"method":"elicitation/create","params":%s}\n' "${text//$'\n'/ }"
}
# A background command has no input unless it is given one.
listens <&0 2>/dev/null &
COFFERDAM_LISTENER=$!

# What a path led to when the project was read is not believed: a link would be another program's name.
rejected() {
    printf '{"code":-32602,"message":"Tool path rejected by policy"}' >"${COFFERDAM_FILES}error"
    return 1
}
is_plain() {
    local path=$1
    [[ -f $path ]] || return
    while [[ $path != "$MCPBASH_PROJECT_ROOT" ]]; do
        [[ ! -L $path && $path == */* ]] || return
        path=${path%/*}
    done
}
case $COFFERDAM_RUN in
    program | bash) is_plain "$COFFERDAM_PROGRAM" || COFFERDAM_RUN=rejected ;;
esac
case $COFFERDAM_RUN in
    program) "$COFFERDAM_PROGRAM" </dev/null >>"${COFFERDAM_FILES}output" ;;
    bash) bash "$COFFERDAM_PROGRAM" </dev/null >>"${COFFERDAM_FILES}output" ;;
    policy) decides </dev/null 3>>"${COFFERDAM_FILES}output" >&2 ;;
    provider) reads "$MCP_RESOURCE_URI" </dev/null >>"${COFFERDAM_FILES}output" ;;
    *) rejected ;;
esac
COFFERDAM_CODE=$?
kill "$COFFERDAM_LISTENER" 2>/dev/null
COFFERDAM_ERROR=
IFS= read -rN 65536 COFFERDAM_ERROR <"${COFFERDAM_FILES}error"
# Lengths in bytes.
LC_ALL=C
printf '\n%s %d %d\n%s' "$COFFERDAM_MARK" "$COFFERDAM_CODE" "${#COFFERDAM_ERROR}" "$COFFERDAM_ERROR"
[[ $COFFERDAM_CODE != 0 || ! -s ${COFFERDAM_FILES}resources ]] || embeds
printf '\n%s\n' "$COFFERDAM_MARK"
# A short text is sent without another program.
if IFS= read -rd '' -n 2048 COFFERDAM_OUTPUT <"${COFFERDAM_FILES}output"; then
    cat -- "${COFFERDAM_FILES}output"
else
    printf %s "$COFFERDAM_OUTPUT"
fi
exit 0
