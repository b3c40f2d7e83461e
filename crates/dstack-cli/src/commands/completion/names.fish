
# Names that only the configuration file or the server knows.
function __dstack_names
    set -l words (commandline -opc)
    set -l project
    if set -l at (contains --index -- --project $words); and test (count $words) -gt $at
        set project --project $words[(math $at + 1)]
    else if set -l given (string match -- '--project=*' $words)
        set project $given[-1]
    end
    dstack _complete $argv[1] $project 2>/dev/null
end

# Whether these are the first commands of the command line, with options before, between and after them.
function __dstack_in
    set -l words (commandline -opc)
    set -e words[1]
    set -l commands
    set -l previous
    for word in $words
        if test "$previous" != --project; and not string match -q -- '-*' $word
            set -a commands $word
        end
        set previous $word
    end
    set -l last (count $argv)
    test (count $commands) -ge $last; and test "$commands[1..$last]" = "$argv"
end

set -l __dstack_in_command 'test (count (commandline -opc)) -gt 1'
complete -c dstack -n $__dstack_in_command -l project -x -a '(__dstack_names projects)'
complete -c dstack -n '__dstack_in apply; or __dstack_in offer' -l fleet -x -a '(__dstack_names fleets)'
complete -c dstack -n '__dstack_in event' -l target-fleet -l within-fleet -x -a '(__dstack_names fleets)'
complete -c dstack -n '__dstack_in event' -l target-run -l within-run -x -a '(__dstack_names runs)'
complete -c dstack -n '__dstack_in event' -l target-volume -x -a '(__dstack_names volumes)'
complete -c dstack -n '__dstack_in event' -l target-gateway -l within-gateway -x -a '(__dstack_names gateways)'
complete -c dstack -n '__dstack_in event' -l target-secret -x -a '(__dstack_names secrets)'
complete -c dstack -n '__dstack_in attach; or __dstack_in stop; or __dstack_in run get' -f -a '(__dstack_names runs)'
complete -c dstack -n '__dstack_in logs' -f -a '(__dstack_names all-runs)'
complete -c dstack -n '__dstack_in fleet get; or __dstack_in fleet delete' -f -a '(__dstack_names fleets)'
complete -c dstack -n '__dstack_in volume get; or __dstack_in volume delete' -f -a '(__dstack_names volumes)'
complete -c dstack -n '__dstack_in gateway get; or __dstack_in gateway delete; or __dstack_in gateway update' -f -a '(__dstack_names gateways)'
complete -c dstack -n '__dstack_in secret get; or __dstack_in secret delete' -f -a '(__dstack_names secrets)'
complete -c dstack -n '__dstack_in project set-default' -f -a '(__dstack_names projects)'
