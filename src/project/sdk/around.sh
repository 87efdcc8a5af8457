# What stands around a project's script in its cell: its files, its end, and the error that it wrote. Written for cofferdam.
umask 077
for name in error resources progress log debug; do : >"$FILES$name" || exit 125; done
if [[ $ARGUMENTS == file ]]; then
    cat >"${FILES}arguments" || exit 125
    export MCP_TOOL_ARGS_FILE=${FILES}arguments
fi
[[ -z $METADATA ]] || export MCP_TOOL_METADATA_JSON=$METADATA
cd "$MCPBASH_PROJECT_ROOT" || exit 125
case $RUN in
    program) "$PROGRAM" </dev/null ;;
    bash) bash "$PROGRAM" </dev/null ;;
    policy) decides </dev/null 3>&1 >&2 ;;
    provider) reads "$MCP_RESOURCE_URI" </dev/null ;;
esac
code=$?
error= log=
IFS= read -rN 65536 error <"${FILES}error"
IFS= read -rN 65536 log <"${FILES}log"
# Lengths in bytes.
LC_ALL=C
printf '\n%s %d %d %d\n%s%s' "$MARK" "$code" "${#error}" "${#log}" "$error" "$log"
[[ $code != 0 || ! -s ${FILES}resources ]] || embeds
exit 0
