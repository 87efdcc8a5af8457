# Reads a resource by its URI: by the project's provider, else by one of these. Written for cofferdam.
# Ends with 2 for a path outside the project, 3 if there is nothing, 4 for a bad URI, 5 if nothing can read it.
reads() {
    local program=$MCPBASH_PROVIDERS_DIR/$COFFERDAM_PROVIDER.sh
    if [[ -f $program && -x $program ]]; then
        "$program" "$1"
    elif [[ -f $program ]]; then
        bash "$program" "$1"
    else
        case $COFFERDAM_PROVIDER in
            file) reads_file "$1" ;;
            echo) printf %s "${1#echo://}" ;;
            git | https) echo "the server fetches $COFFERDAM_PROVIDER resources, and was started with a provider for them" >&2; return 5 ;;
            ui)
                # Only pages that were found when the project was read have a file.
                [[ -n $COFFERDAM_PAGE ]] || return 3
                reads_file "file://./${COFFERDAM_PAGE//%/%25}"
                ;;
            *) echo "there is no provider providers/$COFFERDAM_PROVIDER.sh" >&2; return 5 ;;
        esac
    fi
}

reads_file() {
    local path=${1#file://} real plain
    [[ $path =~ ^([^%]|%[0-9a-fA-F]{2})+$ && $path != *%00* ]] || return 4
    path=${path//\\/\\\\}
    printf -v path %b "${path//%/\\x}"
    [[ $path == /* ]] || path=$MCPBASH_PROJECT_ROOT/$path
    # The mark keeps line breaks at the end of a name.
    plain=$(realpath -ms -- "$path" && echo .) || return 4
    [[ $plain == "$MCPBASH_PROJECT_ROOT"/* ]] || return 2
    real=$(realpath -e -- "$path" 2>/dev/null && echo .) || return 3
    # A link on the way leads to a path that was not asked for.
    [[ $real == "$plain" ]] || return 2
    real=${real%$'\n'.}
    [[ -f $real ]] || return 3
    cat -- "$real"
}

reads "$MCP_RESOURCE_URI"
