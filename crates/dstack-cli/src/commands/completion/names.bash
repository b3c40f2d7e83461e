
# Names that only the configuration file or the server knows.
_dstack_names() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="" kind="" project=() commands=() i word
    [ "$COMP_CWORD" -gt 0 ] && prev="${COMP_WORDS[COMP_CWORD-1]}"
    # Bash takes --option=value apart into three words.
    [ "$cur" = "=" ] && prev="${COMP_WORDS[COMP_CWORD-1]}" && cur=""
    [ "$prev" = "=" ] && prev="${COMP_WORDS[COMP_CWORD-2]}"
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        case "$word" in
            --project)
                [ "${COMP_WORDS[i+1]}" = "=" ] && i=$((i + 1))
                i=$((i + 1))
                [ "$i" -lt "$COMP_CWORD" ] && project=(--project "${COMP_WORDS[i]}") ;;
            --project=*) project=(--project "${word#--project=}") ;;
            -* | =) ;;
            *) commands+=("$word") ;;
        esac
    done
    case "$prev" in
        --project) kind=projects ;;
        --fleet | --target-fleet | --within-fleet) kind=fleets ;;
        --target-run | --within-run) kind=runs ;;
        --target-volume) kind=volumes ;;
        --target-gateway | --within-gateway) kind=gateways ;;
        --target-secret) kind=secrets ;;
        -f | --file)
            COMPREPLY=($(compgen -f -X '!*.y*ml' -- "$cur") $(compgen -d -S / -- "$cur"))
            compopt -o nospace 2>/dev/null
            return ;;
    esac
    if [ -z "$kind" ] && [[ "$cur" != -* ]]; then
        case "${commands[0]} ${commands[1]}" in
            "attach "* | "stop "* | "run get") kind=runs ;;
            "logs "*) kind=all-runs ;;
            "fleet get" | "fleet delete") kind=fleets ;;
            "volume get" | "volume delete") kind=volumes ;;
            "gateway get" | "gateway delete" | "gateway update") kind=gateways ;;
            "secret get" | "secret delete") kind=secrets ;;
            "project set-default") kind=projects ;;
        esac
    fi
    if [ -n "$kind" ]; then
        COMPREPLY=($(compgen -W "$(dstack _complete "$kind" "${project[@]}" 2>/dev/null)" -- "$cur"))
        [ "${#COMPREPLY[@]}" -gt 0 ] && return
    fi
    _dstack "$@"
}
complete -F _dstack_names -o bashdefault -o default dstack
