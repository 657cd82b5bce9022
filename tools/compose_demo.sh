#!/usr/bin/env bash
# `make compose-demo`: build the image, start the federation of docker-compose.yml, show the run and its summary, and
# take everything down again, volumes too. The exit status is the run's.
set -euo pipefail
read -r -a compose <<<"${COMPOSE:-docker compose}"
if ! docker version >/dev/null 2>&1; then
    echo "compose-demo: expected a Docker engine, got none (docs/deployment.md says how to start one by hand)" >&2
    exit 2
fi
if ! "${compose[@]}" version >/dev/null 2>&1; then
    echo "compose-demo: expected Compose as docker compose or docker-compose, got none" >&2
    exit 2
fi
export CLIENTS=${CLIENTS:-3}
# Its own project: `down --volumes` must not take the keys and runs of a federation that was started by hand.
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-sepal-demo}
run=${RUN:-demo}
trap '"${compose[@]}" down --volumes --timeout 20 >/dev/null 2>&1 || true' EXIT
if [ "${BUILD:-1}" = 1 ]; then
    "${compose[@]}" build certs
fi
"${compose[@]}" up --detach --no-build --scale "supernode=$CLIENTS"
id=$("${compose[@]}" ps --all --quiet run | head -1)
docker logs --follow "$id" &
while state=$(docker inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$id") && [ "${state% *}" != exited ]; do
    sleep 2
done
wait
"${compose[@]}" exec -T superlink sepal show "/runs/$run" || "${compose[@]}" logs --tail 30 superlink supernode
exit "${state#* }"
