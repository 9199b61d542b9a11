# Ranks of MPI: one digest for threads, processes of mok launch, and MPI ranks that share memory, that do not, and
# that live on several hosts (namespaces of this test's own making); a rank that is killed or stopped ends all of
# them within the deadline, named; nothing is left behind.
set -u
cd "$(dirname "$0")" || exit 1
failed=0

skip() {
    echo "skipped: $1"
    exit 77
}

fail() {
    echo "$1"
    failed=1
}

# Open MPI as root, more ranks than processors, between hosts by TCP over the bridge.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
network="--mca pml ob1 --mca btl tcp,self --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24"

# Words of a process's file, a line each; nothing when it has gone.
words() {
    { tr '\0' '\n' <"/proc/$1/$2"; } 2>/dev/null
}

of_run() { # processes of the run that writes to $1
    for process in $(pgrep -x mok); do
        words "$process" cmdline | grep -qx "$1" && echo "$process"
    done
}

await_checkpoint() { # of the run that writes to $1
    tries=0
    while [ ! -s "$1/checkpoint.safetensors" ] && [ $tries -lt 1000 ]; do
        sleep 0.02
        tries=$((tries + 1))
    done
    sleep 0.1
}

# Signal $1 to rank 1 of the run that writes to $2, once a checkpoint is there.
strike() {
    await_checkpoint "$2"
    for process in $(of_run "$2"); do
        words "$process" environ | grep -qx OMPI_COMM_WORLD_RANK=1 && kill -s "$1" "$process"
    done
}

# Rank 1 of 3 gets signal $2; survivors end by themselves: --enable-recovery keeps mpirun from ending them first.
# With a stopped rank mpirun must end it, so there it is left to.
disturb() {
    name=$1
    signal=$2
    shift 2
    recovery="--enable-recovery"
    [ "$signal" = STOP ] && recovery=""
    out="$work/cut-$name-$signal"
    strike "$signal" "$out" &
    striker=$!
    begin=$(date +%s)
    # shellcheck disable=SC2086 # lists of options
    timeout -k 5 60 mpirun $recovery "$@" -n 3 "$MOK" train $options --steps 50000 --save-every 2 --timeout-ms 1500 \
        --out "$out" >/dev/null 2>"$work/log"
    code=$?
    spent=$(($(date +%s) - begin))
    wait $striker
    [ $code != 124 ] && [ $spent -le 40 ] || fail "$name, $signal: mpirun took $spent s"
    # A stopped rank that mpirun wakes to end it may say the same.
    told=$(grep -c 'mok train: .*waited for rank 1 in phase' "$work/log")
    [ "$told" = 2 ] || [ "$signal$told" = STOP3 ] ||
        fail "$name, $signal: not one message of each survivor: $(cat "$work/log")"
    left=$(of_run "$out")
    [ -z "$left" ] || fail "$name, $signal: processes are left: $left"
    # shellcheck disable=SC2086
    got=$("$MOK" train $options --steps 50000 --stop-at 600 --ranks 2 --resume "$out" --out "$work/again" | tail -n 1)
    [ "$got" = "$whole" ] || fail "$name, $signal: resumed: '$got', undisturbed: '$whole'"
}

expect_digest() {
    digest=$(tail -n 1 "$work/said")
    [ "$digest" = "$threads" ] || fail "$1: '$digest', threads: '$threads'; $(cat "$work/said")"
}

on_one_host() {
    for ranks in 1 2 3 4 8; do
        # shellcheck disable=SC2086
        "$MOK" launch --ranks $ranks -- "$MOK" train $options --steps 6 --out "$work/p" >"$work/said" 2>&1
        expect_digest "$ranks processes of mok launch"
        for share in 1 0; do
            # shellcheck disable=SC2086
            MOK_SHARE_MEMORY=$share mpirun --oversubscribe -x MOK_SHARE_MEMORY -n $ranks \
                "$MOK" train $options --steps 6 --out "$work/p" >"$work/said" 2>&1
            expect_digest "$ranks ranks of MPI, shared memory $share"
        done
    done
    # Other options on one rank: all refuse, naming rank and option.
    # shellcheck disable=SC2086
    timeout -k 5 60 mpirun --oversubscribe -n 2 "$MOK" train $options --steps 6 --out "$work/p" : \
        -n 1 "$MOK" train $options --steps 6 --out "$work/p" --seed 2 >/dev/null 2>"$work/log"
    [ "$(grep -c 'rank 2 runs with seed 2, rank 0 with 1' "$work/log")" -ge 1 ] || fail "seeds: $(cat "$work/log")"
    disturb one-host KILL --oversubscribe
    disturb one-host STOP --oversubscribe
}

# Host 2 loses its network. All ranks end, those of the other hosts naming rank 1; mpirun itself waits for its daemon
# there, and is not part of this.
cut_off() {
    out="$work/cut-off"
    # shellcheck disable=SC2086 # lists of options
    mpirun "$@" -n 3 "$MOK" train $options --steps 50000 --save-every 2 --timeout-ms 1500 --out "$out" \
        >/dev/null 2>"$work/log" &
    launcher=$!
    await_checkpoint "$out"
    ip link set veth2 down
    tries=0
    while [ -n "$(of_run "$out")" ] && [ $tries -lt 200 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    left=$(of_run "$out")
    [ -z "$left" ] || fail "a host without network: after 20 s processes are left: $left"
    sleep 0.2 # mpirun passes on what they said
    kill -KILL $launcher
    wait $launcher 2>/dev/null
    told=$(grep -c 'mok train: .*waited for rank 1 in phase' "$work/log")
    [ "$told" = 2 ] || fail "a host without network: not one message of each other rank: $(cat "$work/log")"
}

on_hosts() {
    . ../support/hosts.sh
    hosts_make "$work/hosts" 4
    mpi="--mca plm_rsh_agent $hosts_agent $network"
    for layout in "2 10.77.0.1:1,10.77.0.2:1" "3 10.77.0.1:1,10.77.0.2:1,10.77.0.3:1" "4 10.77.0.1:2,10.77.0.2:2" \
        "8 10.77.0.1:2,10.77.0.2:2,10.77.0.3:2,10.77.0.4:2" "8 10.77.0.3:5,10.77.0.1:3"; do
        ranks=${layout%% *}
        # shellcheck disable=SC2086
        timeout -k 5 60 mpirun $mpi --host "${layout#* }" -n $ranks "$MOK" train ${options%--quiet} --steps 6 --sample-bytes 0 \
            --out "$work/p" >"$work/said" 2>&1
        expect_digest "hosts $layout"
        grep -q 'exchanges messages with [1-7]' "$work/said" || fail "hosts $layout: no messages: $(cat "$work/said")"
    done
    # shellcheck disable=SC2086
    disturb hosts KILL $mpi --host 10.77.0.1:1,10.77.0.2:1,10.77.0.3:1
    # shellcheck disable=SC2086
    disturb hosts STOP $mpi --host 10.77.0.1:2,10.77.0.2:1
    # shellcheck disable=SC2086
    cut_off $mpi --host 10.77.0.1:1,10.77.0.2:1,10.77.0.3:1
}

if [ "${1:-}" = inside ]; then
    work=$2
    options=$3
    threads=$4
    whole=$5
    TMPDIR=$work
    export TMPDIR
    on_hosts
    exit $failed
fi

command -v mpirun >/dev/null 2>&1 || skip "no mpirun"
[ "${MOK_HAVE_MPI:-0}" = 1 ] || skip "built without MPI"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find /dev/shm -name 'mok.*' | sort >"$work/before"
python3 -c '
state = 11
out = []
for i in range(20000):
    state = (state * 1103515245 + 12345) % 2**31
    out.append(chr(97 + state // 65536 % 26) if state // 1024 % 5 else " ")
print("".join(out))
' >"$work/text"
options="--data $work/text --size tiny --threads 1 --quiet"
# shellcheck disable=SC2086
threads=$("$MOK" train $options --steps 6 --out "$work/threads" --ranks 2)
# shellcheck disable=SC2086
whole=$("$MOK" train $options --steps 50000 --stop-at 600 --out "$work/whole" | tail -n 1)
on_one_host
# Others' runs on this machine have theirs for moments; what is left stays.
find /dev/shm -name 'mok.*' | sort | comm -13 "$work/before" - >"$work/new"
if [ -s "$work/new" ]; then
    sleep 3
    find /dev/shm -name 'mok.*' | sort | comm -12 "$work/new" - >"$work/left"
    [ ! -s "$work/left" ] || fail "objects are left in /dev/shm: $(cat "$work/left")"
fi
. ../support/hosts.sh
if hosts_possible; then
    hosts_enter "$(basename "$0")" inside "$work" "$options" "$threads" "$whole" || failed=1
else
    echo "not run: hosts in namespaces, which this machine does not allow"
fi
exit $failed
