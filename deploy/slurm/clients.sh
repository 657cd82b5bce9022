#!/bin/bash
# Clients of a federation as jobs of Slurm: one task of the array is one client, under the same name for ever.
#
#   export SEPAL_SERVER=fl.example.org:9092 SEPAL_CERTS=$HOME/fl-certs/nodes SEPAL_STATES=$HOME/fl-states
#   sbatch --array=0-9 --time=12:00:00 deploy/slurm/clients.sh --device cuda      # what follows goes to `sepal join`
#
# Before its time limit, and when it is preempted with requeue, a job is queued again and rejoins as the same client.
# `scancel JOB` ends the clients. docs/clusters.md has the rest.
#SBATCH --job-name=sepal-client
#SBATCH --output=%x-%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -uo pipefail
: "${SEPAL_SERVER:?expected HOST:PORT of the server}"
: "${SEPAL_CERTS:?expected the directory with a directory for each client, NAME/key and NAME/ca.crt}"
: "${SEPAL_STATES:?expected a directory that all nodes see}"
: "${SLURM_ARRAY_TASK_ID:?expected sbatch --array=0-N}"
# Before any arithmetic, which would run a command that is in a subscript.
for variable in SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_{ID,MIN,MAX,COUNT}; do
    case ${!variable-0} in *[!0-9]* | "") echo "$variable: expected a number, got ${!variable@Q}" >&2; exit 2 ;; esac
done
for variable in SEPAL_SERVER SEPAL_CERTS SEPAL_STATES; do  # `sepal join` would take it for an option
    case ${!variable} in -*) echo "$variable: expected no leading -, got ${!variable@Q}" >&2; exit 2 ;; esac
done
[ "$SLURM_ARRAY_TASK_MIN" = 0 ] && [ "$SLURM_ARRAY_TASK_MAX" = $((SLURM_ARRAY_TASK_COUNT - 1)) ] ||
    { echo "expected sbatch --array=0-N, got $SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX" >&2; exit 2; }

# Slurm appends to the file to which a link leads; in a directory from elsewhere, one may have been planted.
log=${SLURM_JOB_NAME-}-$SLURM_ARRAY_TASK_ID.log
if [ -L "$log" ]; then
    instead=$(mktemp "sepal-client-$SLURM_ARRAY_TASK_ID.XXXXXX.log") || exit 2
    exec >>"$instead" 2>&1
    echo "$log is a link: this file takes its place"
fi

name=$(printf 'client-%05d' "$SLURM_ARRAY_TASK_ID")
client=
again() {
    [ -z "$client" ] || { kill -TERM "$client" && wait "$client"; }
    exec scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
}
trap again USR1
sepal join "$SEPAL_SERVER" --certs "$SEPAL_CERTS/$name" --partition "$SLURM_ARRAY_TASK_ID" \
    --of "$SLURM_ARRAY_TASK_COUNT" --state-dir "$SEPAL_STATES" "$@" &
client=$!
wait "$client"
