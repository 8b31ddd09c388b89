#!/usr/bin/env bash
# The paper's runs on one of its clusters: up, data once, all cells, fetch, report, down.
#
#   scripts/aws/4xm5.2xlarge.sh                       # prints template, cost and commands, and starts nothing
#   scripts/aws/4xm5.2xlarge.sh --max-hours 6 --yes   # does it; interrupted at any point, the same command goes on
#
# A cluster that stands is used until its own hours are over, which are those of the first call.
#
# Called as: reproduce.sh PRESET METHODS OPTION... -- [--max-hours H] [--yes] [--region R] [--data DIR]: a run of each of
# METHODS (a,b,c), one after another, with those options of `istbench run`. The machines download Speech Commands
# themselves, unless --data DIR goes along.
set -euo pipefail
here=$(dirname "$0")

preset=$1
IFS=, read -ra methods <<< "$2"
shift 2
options=()
while [[ $1 != -- ]]; do
    options+=("$1")
    shift
done
shift

hours= yes= region=() data=
while [[ $# -gt 0 ]]; do
    case $1 in
        --max-hours) hours=${2:?--max-hours HOURS}; shift 2 ;;
        --region) region=(--region "${2:?--region NAME}"); shift 2 ;;
        --data) data=${2:?--data DIR}; shift 2 ;;
        --yes) yes=1; shift ;;
        *) echo "unknown option $1; there are --max-hours, --region, --data and --yes" >&2; exit 2 ;;
    esac
done

cluster=(--preset "$preset" "${region[@]}")
fetch_data=()
if [[ -n $data ]]; then
    options+=(--data "$data")
elif [[ " ${options[*]} " != *cifar10* ]]; then
    fetch_data=(data speech --source download)
fi

if [[ -z $yes ]]; then
    istbench aws up "${cluster[@]}" --max-hours "${hours:-2}" --dry-run
    [[ ${#fetch_data[@]} == 0 ]] || istbench aws run "${cluster[@]}" --dry-run -- "${fetch_data[@]}"
    for method in "${methods[@]}"; do
        istbench aws run "${cluster[@]}" --dry-run -- run --method "$method" "${options[@]}"
    done
    echo "nothing was started: --yes does" >&2
    exit 0
fi

if [[ -z $hours ]]; then
    echo "give --max-hours: after them the machines end themselves, whatever happens" >&2
    exit 2
fi

# Results come back whatever happens to the run; what is not fetched keeps `down` from deleting it.
istbench aws up "${cluster[@]}" --max-hours "$hours" --yes
[[ ${#fetch_data[@]} == 0 ]] || istbench aws run "${cluster[@]}" -- "${fetch_data[@]}"
status=0
for method in "${methods[@]}"; do
    istbench aws run "${cluster[@]}" -- run --method "$method" "${options[@]}" || status=$?
done
results=$(istbench aws fetch "${cluster[@]}")
istbench report "$results" --published "$here/../../results/published/figures.csv" || status=$?
if [[ $status == 0 ]]; then
    istbench aws down "${cluster[@]}"
else
    echo "ended with status $status: run this again to go on, or: istbench aws down ${cluster[*]}" >&2
fi
exit "$status"
