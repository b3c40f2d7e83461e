
# Names that only the configuration file or the server knows.
_dstack_names() {
    local kind="" previous="${words[CURRENT-1]}"
    local -a project names commands
    local index word
    for (( index = 2; index < CURRENT; index++ )); do
        word="${words[index]}"
        case "$word" in
            --project)
                (( index++ ))
                (( index < CURRENT )) && project=(--project "${words[index]}") ;;
            --project=*) project=(--project "${word#--project=}") ;;
            -*) ;;
            *) commands+=("$word") ;;
        esac
    done
    case "$previous" in
        --project) kind=projects ;;
        --fleet|--target-fleet|--within-fleet) kind=fleets ;;
        --target-run|--within-run) kind=runs ;;
        --target-volume) kind=volumes ;;
        --target-gateway|--within-gateway) kind=gateways ;;
        --target-secret) kind=secrets ;;
        -f|--file) _files -g '*.y(a|)ml'; return ;;
    esac
    if [[ -z "$kind" && "${words[CURRENT]}" != -* ]]; then
        case "${commands[1]} ${commands[2]}" in
            attach\ *|stop\ *|"run get") kind=runs ;;
            logs\ *) kind=all-runs ;;
            "fleet get"|"fleet delete") kind=fleets ;;
            "volume get"|"volume delete") kind=volumes ;;
            "gateway get"|"gateway delete"|"gateway update") kind=gateways ;;
            "secret get"|"secret delete") kind=secrets ;;
            "project set-default") kind=projects ;;
        esac
    fi
    if [[ -n "$kind" ]]; then
        names=(${(f)"$(dstack _complete $kind $project 2>/dev/null)"})
        (( ${#names} )) && compadd -- $names && return
    fi
    _dstack "$@"
}
compdef _dstack_names dstack
