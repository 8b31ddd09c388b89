#!/usr/bin/env bash
# Runs tables of the IST paper on one of its clusters: up, data, all cells, tables beside the published, down.
#
#   scripts/aws/4xm5.2xlarge.sh                       # prints template, cost and commands, and starts nothing
#   scripts/aws/4xm5.2xlarge.sh --max-hours 6 --yes   # does it; after an interruption, the same command continues
#
# An existing cluster keeps the end that the first call gave it.
#
# Usage: reproduce.sh PRESET WORKLOAD TABLE,... -- [--max-hours H] [--yes] [--region R] [--data DIR]
# It runs `istbench reproduce ist --scale paper` for these tables, on all machines of the preset. Each machine downloads
# Speech Commands itself, unless --data DIR is given: istbench copies DIR to the machines.
set -euo pipefail

preset=$1 workload=$2 tables=$3
if [[ $4 != -- ]]; then
    echo "usage: reproduce.sh PRESET WORKLOAD TABLE,... -- [OPTION...]" >&2
    exit 2
fi
shift 4

hours= yes= region=() data=
while [[ $# -gt 0 ]]; do
    case $1 in
        --max-hours) hours=${2:?--max-hours HOURS}; shift 2 ;;
        --region) region=(--region "${2:?--region NAME}"); shift 2 ;;
        --data) data=${2:?--data DIR}; shift 2 ;;
        --yes) yes=1; shift ;;
        *) echo "unknown option $1; the options are --max-hours, --region, --data and --yes" >&2; exit 2 ;;
    esac
done

cluster=(--preset "$preset" "${region[@]}")
results=results/aws/${preset/./-}
# A machine runs this in the home directory of its user.
archive=http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz
sha256=af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58
download="test -d speech-commands || {
    curl --fail --silent --show-error --location --output archive $archive &&
    echo '$sha256  archive' | sha256sum --check --quiet && rm -rf part && mkdir part &&
    tar --extract --gzip --file archive --directory part && rm archive && mv part speech-commands
}"
options=(ist --scale paper --only "$tables" --out "$results")
if [[ -n $data ]]; then
    download=
    options+=(--data "$workload=$data")
elif [[ $workload == speech ]]; then
    options+=(--data "speech=/home/istbench/speech-commands")
else
    download=
fi

reproduce() {  # FOLDER [WORD...]
    local at=(--hosts "$1/hosts" --ssh-config "$1/ssh_config" --install)
    "${@:2}" istbench reproduce "${options[@]}" "${at[@]}"
}

if [[ -z $yes ]]; then
    istbench aws up "${cluster[@]}" --max-hours "${hours:-2}" --dry-run
    [[ -z $download ]] || printf 'on each machine: %s\n' "$download"
    reproduce FOLDER echo
    echo "nothing was started; --yes starts it" >&2
    exit 0
fi

if [[ -z $hours ]]; then
    echo "give --max-hours: the machines end themselves after so many hours, whatever happens" >&2
    exit 2
fi

folder=$(istbench aws up "${cluster[@]}" --max-hours "$hours" --yes)
status=0
if [[ -n $download ]]; then
    downloads=()
    while read -r host; do
        ssh -F "$folder/ssh_config" -n "$host" "$download" &
        downloads+=($!)
    done < "$folder/hosts"
    for process in "${downloads[@]}"; do
        wait "$process" || status=$?
    done
fi
reproduce "$folder" || status=$?
if [[ $status == 0 ]]; then
    istbench aws down "${cluster[@]}" --out "$results"
else
    echo "ended with status $status: run this again to continue, or: istbench aws down ${cluster[*]}" >&2
fi
exit "$status"
