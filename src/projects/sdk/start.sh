# Runs the hooks of a project before it is served, and prints what they set and registered. Written for cofferdam.
# MARK is a word that no hook knows; each record is KIND NUL TEXT NUL.
out=$(mktemp) said=$(mktemp) begun=
umask 077
for kind in tools resources resources_templates prompts completion; do
    eval "mcp_${kind}_manual_begin() { :; }
        mcp_${kind}_register_manual() { [[ -z \${1-} ]] || printf '%s\0%s\0' $kind \"\$1\" >>\"\$out\"; }
        mcp_${kind}_manual_finalize() { :; }
        mcp_${kind}_manual_abort() { :; }"
done
for level in debug info notice warning error; do
    eval "mcp_logging_$level() { printf '%s: %s\n' $level \"\${2-}\" >&2; }"
done
mcp_health_check_command() {
    local found=absent
    command -v -- "$1" >/dev/null 2>&1 && found=there
    printf 'health\0%s\t%s\0' "$found" "${2:-$1}" >>"$out"
    [[ $found == there ]]
}
mcp_health_check_env() {
    local found=absent
    [[ -n ${!1:-} ]] && found=there
    printf 'health\0%s\t%s\0' "$found" "${2:-$1}" >>"$out"
    [[ $found == there ]]
}
cd /workspace || exit 125
export MCPBASH_PROJECT_ROOT=/workspace MCPBASH_TOOLS_DIR=/workspace/$TOOLS MCPBASH_RESOURCES_DIR=/workspace/$RESOURCES
export MCPBASH_PROMPTS_DIR=/workspace/$PROMPTS MCPBASH_SERVER_DIR=/workspace/$SERVER MCPBASH_JSON_TOOL=jq
runs() (
    set -euo pipefail
    before=$(env | sort)
    [[ $ENV_HOOK == no ]] || source "$MCPBASH_SERVER_DIR"/env.sh </dev/null >&2
    while IFS= read -r -d '' one; do
        [[ ${one%%=*} == _ || ${one%%=*} == SHLVL ]] || grep -qxF -- "${one%%$'\n'*}" <<<"$before" || printf 'env\0%s\0' "$one" >>"$out"
    done < <(env -0)
    [[ $REGISTER == no ]] || source "$MCPBASH_SERVER_DIR"/register.sh </dev/null >"$said"
    if [[ $HEALTH != no ]]; then
        set +e
        source "$MCPBASH_SERVER_DIR"/health-checks.sh </dev/null >&2
    fi
    printf 'done\0\0' >>"$out"
)
runs
code=$?
[[ ! -s $said ]] || { printf 'json\0'; cat "$said"; printf '\0'; } >>"$out"
printf '%s %d\n' "$MARK" "$code"
cat "$out"
