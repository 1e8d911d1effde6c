#!/bin/sh
# Starts the ranks of one model over the pods of a LeaderWorkerSet, without SSH:
#   ranks.sh COMMAND...
# MPICH's launcher waits in the leader, and its proxy in each pod (the leader's own too) connects to it
# and starts the ranks there. Needs TESSERA_PODS, TESSERA_RANKS_PER_POD and TESSERA_CONTROL_PORT, and
# from the controller LWS_LEADER_ADDRESS and LWS_WORKER_INDEX.
set -eu

start_proxy() {  # as `mpirun -launcher manual` prints it; ends with the ranks
  hydra_pmi_proxy --control-port "$LWS_LEADER_ADDRESS:$TESSERA_CONTROL_PORT" --rmk user --launcher manual \
    --demux poll --pgid 0 --retries 10 --usize -2 --pmi-port 0 --gpus-per-proc -2 --proxy-id "$LWS_WORKER_INDEX"
}
join() {  # the launcher refuses connections until it listens: status 5
  tries=600
  while status=0; start_proxy 2>"$log" || status=$?; [ "$status" -eq 5 ] && [ "$tries" -gt 0 ]; do
    tries=$((tries - 1))
    sleep 0.5
  done
  cat "$log" >&2
  return "$status"
}

log=${TMPDIR:-/tmp}/proxy.log
if [ "$LWS_WORKER_INDEX" -ne 0 ]; then
  # The leader's drain ends the ranks of all pods. A worker that is told to stop waits for it.
  trap '' TERM INT
  join
  exit
fi

hosts=$(seq -s, -f 'pod%g' 0 $((TESSERA_PODS - 1)))
MPIEXEC_PORT_RANGE=$TESSERA_CONTROL_PORT:$TESSERA_CONTROL_PORT \
  mpirun -launcher manual -hosts "$hosts" -ppn "$TESSERA_RANKS_PER_POD" \
  -n $((TESSERA_PODS * TESSERA_RANKS_PER_POD)) "$@" &
launcher=$!
trap 'kill -TERM "$launcher"' TERM INT
(trap '' TERM INT; join) &
status=0
wait "$launcher" || status=$?
while kill -0 "$launcher" 2>/dev/null; do  # a signal ends a wait
  status=0
  wait "$launcher" || status=$?
done
exit "$status"
